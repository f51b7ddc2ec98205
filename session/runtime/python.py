# The driver of a Python session. The program runs on the main thread; another one reads the socket, so that an interrupt is heard while it computes.
def _driver():
    import ast, builtins, io, json, linecache, math, os, queue, signal, socket, struct, sys, threading, traceback, types

    sock = socket.socket(fileno=3)
    os.set_inheritable(3, False)
    sock.setblocking(True)
    me, main_thread = os.getpid(), threading.get_ident()
    dumps, loads, getpid, pack = json.dumps, json.loads, os.getpid, struct.pack  # the program may change the modules
    writing, requests = threading.Lock(), queue.SimpleQueue()
    waiting, numbers = {}, iter(range(1, 1 << 62))
    limits = {"value": 0, "entry": 0}
    state = {"current": 0, "interrupt": 0, "runs": 0}
    depth_limit = 500

    def send(text):
        if getpid() != me:  # a copy of this process that ran out of program
            os._exit(0)
        body = text.encode()
        with writing:
            sock.sendall(pack(">IB", len(body), ord("m")) + body)

    def receive(n):
        data = bytearray(n)
        view = memoryview(data)
        while n:
            got = sock.recv_into(view[-n:])
            if not got:
                os._exit(0)  # nobody is there any more
            n -= got
        return data

    def read():
        try:
            while True:
                n, kind = struct.unpack(">IB", receive(5))
                m = loads(receive(n))
                if kind == ord("i"):
                    state["interrupt"] = m["id"]
                    signal.pthread_kill(main_thread, signal.SIGINT)
                elif "return" in m:
                    waiting.pop(m["return"], queue.SimpleQueue()).put(m)
                else:
                    requests.put(m)
        except BaseException:
            os._exit(1)

    def interrupted(*_):
        if state["current"] and state["current"] == state["interrupt"]:
            raise KeyboardInterrupt

    class HostError(Exception):
        """A function of the host has failed."""

    HostError.__module__ = "builtins"

    class Large(Exception):
        pass

    # check gives why JSON would not give back v, or ''. room counts down what JSON will take.
    def check(v, path, depth, above, room):
        t = type(v)
        if v is None or t is bool:
            room[0] -= 4
            return ""
        if t is int:
            room[0] -= max(1, v.bit_length() // 4)
            return ""
        if t is float:
            room[0] -= 3
            return "" if math.isfinite(v) else f"{path} is {v}, which JSON does not have"
        if t is str:
            room[0] -= len(v) + 2
            try:
                v.isascii() or v.encode()
            except UnicodeEncodeError:
                return f"{path} has half of a surrogate pair, which JSON does not have"
            return ""
        if t is not list and t is not dict:
            return f"{path} is of type {t.__name__}, and would come back as another one"
        if id(v) in above:
            return f"{path} is what contains it: JSON has no cycles"
        if depth > depth_limit:
            return f"{path} is nested deeper than {depth_limit}"
        room[0] -= 2
        if room[0] < 0:
            raise Large
        above.add(id(v))
        for key, value in enumerate(v) if t is list else v.items():
            if t is dict:
                if type(key) is not str:
                    return f"{path} has a key of type {type(key).__name__}"
                why = check(key, path, depth, above, room)
                if why:
                    return why
                room[0] -= 2
            why = check(value, f"{path}[{key!r}]", depth + 1, above, room)
            if why:
                return why
            room[0] -= 1
            if room[0] < 0:
                raise Large
        above.discard(id(v))
        return ""

    # show gives a few words for people. The program's own __repr__ may do anything.
    def show(v):
        try:
            if isinstance(v, (types.FunctionType, type, types.ModuleType)):
                return f"{type(v).__name__} {v.__name__}"[:200]
            return repr(v)[:200] if not isinstance(v, (list, dict, set, frozenset, tuple)) else f"{type(v).__name__} of {len(v)}"
        except Exception:
            return ""

    # encode gives (type, json, why).
    def encode(v, limit):
        kind = "None" if v is None else type(v).__name__
        try:
            why = check(v, "it", 0, set(), [limit])
            text = None if why else dumps(v, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            if text is not None and (len(text) > limit or len(text) * 4 > limit and len(text.encode()) > limit):
                raise Large
            return kind, text, why
        except Large:
            return kind, None, f"it takes more than {limit} bytes"
        except (RecursionError, ValueError, RuntimeError) as e:
            return kind, None, f"it can't be read: {e}"[:200]

    def entry(v, limit, name=""):
        kind, text, why = encode(v, limit)
        e = {"type": kind}
        if name:
            e["name"] = name
        if text is None:
            e["why"], e["text"] = why, show(v)
            return dumps(e)
        return dumps(e)[:-1] + ',"value":' + text + "}"

    # host makes a function that calls one of the host and waits for it.
    def host(number, name):
        def call(*args):
            texts = []
            for i, a in enumerate(args):
                _, text, why = encode(a, limits["value"])
                if text is None:
                    raise TypeError(f"argument {i + 1} of {name} can't leave the session: {why}")
                texts.append(text)
            n, answer = next(numbers), queue.SimpleQueue()
            waiting[n] = answer
            try:
                send('{"call":%d,"fn":%d,"args":[%s]}' % (n, number, ",".join(texts)))
                m = answer.get()
            finally:
                waiting.pop(n, None)
            if "error" in m:
                raise HostError(m["error"])
            return m.get("value")

        call.__name__ = call.__qualname__ = name
        return call

    def decode(name, w):
        v = w["value"]
        for f in w.get("funcs", ()):
            if not f["path"]:
                return host(f["id"], name)
            at = v
            for key in f["path"][:-1]:
                at = at[key]
            at[f["path"][-1]] = host(f["id"], f["path"][-1])
        return v

    module = types.ModuleType("__main__")
    names = module.__dict__
    names["__builtins__"] = builtins
    names["HostError"] = HostError
    baseline = set(names)
    sys.modules["__main__"] = module
    sys.argv = [""]

    def run(code):
        state["runs"] += 1
        filename = f"<run {state['runs']}>"
        linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
        tree = ast.parse(code, filename)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, filename, "exec"), names)
        return None if last is None else eval(compile(ast.Expression(last.value), filename, "eval"), names)

    def hello(m):
        limits["value"], limits["entry"] = m["value"], m["entry"]
        if m["memory"]:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (m["memory"], m["memory"]))
        return dumps({"names": sorted(baseline), "version": sys.version.split()[0]})

    def put(m):
        names.update({name: decode(name, w) for name, w in (m.get("values") or {}).items()})

    def patch(m):
        if not isinstance(names.get(m["name"]), dict):
            names[m["name"]] = {}
        d = names[m["name"]]
        for key, w in (m.get("values") or {}).items():
            d[key] = decode(key, w)
        for key in m.get("names") or ():
            d.pop(key, None)
            names.pop(key, None)
        names.update({key: d[key] for key in m.get("aliases") or () if key in d})

    def delete(m):
        for name in m["names"]:
            names.pop(name, None)

    def restore(m):
        done = [e["name"] for e in m["entries"] if e["name"] not in baseline]
        names.update({e["name"]: e["value"] for e in m["entries"] if e["name"] not in baseline})
        return dumps({"names": done})

    def snapshot(m):
        found = sorted(n for n in set(names) - baseline - set(m.get("names") or ()) if type(n) is str and n.isidentifier())
        return '{"entries":[%s]}' % ",".join(entry(names[n], limits["entry"], n) for n in found)

    operations = {
        "hello": hello,
        "execute": lambda m: entry(run(m["code"]), limits["value"]),
        "get": lambda m: '{"entries":[%s]}' % ",".join(entry(names[n], limits["value"], n) for n in m["names"] if n in names),
        "set": put,
        "patch": patch,
        "delete": delete,
        "snapshot": snapshot,
        "restore": restore,
    }

    def threw(e):
        tb = e.__traceback__
        while tb and tb.tb_frame.f_code.co_filename == __file__:
            tb = tb.tb_next
        try:
            stack = "".join(traceback.format_exception(type(e), e, tb))
        except Exception:
            stack = ""
        try:
            message = str(e)
        except Exception:
            message = "it can not be read"
        return '"threw":' + dumps({"name": type(e).__name__, "message": message[:65536], "stack": stack[:65536]})

    def flush():
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()
            except Exception:
                pass

    def serve(m):
        try:
            try:
                state["current"] = m["id"]
                return '"result":' + (operations[m["op"]](m) or "{}")
            except KeyboardInterrupt as e:
                return '"interrupted":true' if state["interrupt"] == m["id"] else threw(e)
            except BaseException as e:
                return threw(e)
            finally:
                state["current"] = 0
        except KeyboardInterrupt:
            state["current"] = 0
            return '"interrupted":true'

    __file__ = serve.__code__.co_filename
    signal.signal(signal.SIGINT, interrupted)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    threading.Thread(target=read, daemon=True).start()
    while True:
        m = requests.get()
        text = serve(m)
        flush()
        send('{"id":%d,%s}' % (m["id"], text))


_driver()
