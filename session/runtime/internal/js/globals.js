// Makes the operations on the globals of one realm. What is needed of the realm is taken at once, as the program may change it. call(id, args) calls a function of the host, with
// texts of JSON, and gives a promise; wellFormed(s) says whether a string has no half of a surrogate pair, byteLength(s) how long it is in UTF-8. Values come
// as they are and go as objects whose json fields are texts of JSON.
(function (global, call, wellFormed, byteLength) {
  'use strict';
  const { stringify } = JSON;
  const { getPrototypeOf, getOwnPropertyDescriptor, getOwnPropertyNames, getOwnPropertySymbols, keys } = Object;
  const objectPrototype = Object.prototype, arrayPrototype = Array.prototype;
  const isArray = Array.isArray, isFinite = Number.isFinite, { deleteProperty, set: setProperty, has, get: getProperty } = Reflect;
  const tag = Function.prototype.call.bind(objectPrototype.toString), slice = Function.prototype.call.bind(String.prototype.slice);
  const Errors = Error, TypeErrors = TypeError, Sets = Set, Text = String, defineProperty = Object.defineProperty;
  const depthLimit = 500;

  const baseline = new Sets(getOwnPropertyNames(global));
  const gone = new Sets(); // globals that were deleted and can't go: they are undefined
  const limits = { value: 0, entry: 0 }; // of bytes of JSON
  let kept; // what final has kept: { value }

  // check gives why JSON would not give back v, or ''. Loosely, properties that are undefined may be left out. room counts down what JSON will take.
  function check(v, path, depth, above, room, loose) {
    switch (typeof v) {
      case 'string':
        room.left -= v.length + 2;
        return wellFormed(v) ? '' : `${path} has half of a surrogate pair, which JSON does not have`;
      case 'boolean':
        room.left -= 5;
        return '';
      case 'number':
        room.left -= 2;
        return isFinite(v) ? '' : `${path} is ${v}, which JSON does not have`;
      case 'undefined':
        return `${path} is undefined, which JSON does not have`;
      case 'object':
        break;
      default:
        return `${path} is a ${typeof v}, which JSON does not have`;
    }
    if (v === null) return '';
    if (above.has(v)) return `${path} is what contains it: JSON has no cycles`;
    if (depth > depthLimit) return `${path} is nested deeper than ${depthLimit}`;
    const array = isArray(v), prototype = getPrototypeOf(v);
    if (array ? prototype !== arrayPrototype : prototype !== objectPrototype && prototype !== null) {
      return `${path} is of type ${type(v)}, and would come back as another one`;
    }
    if (v.toJSON !== undefined) return `${path} has a toJSON of its own`;
    if (getOwnPropertySymbols(v).length) return `${path} has a symbol as a key`;
    room.left -= 2;
    above.add(v);
    const names = array ? undefined : keys(v), n = array ? v.length : names.length;
    if (array && keys(v).length !== n) return `${path} has holes or keys that JSON does not have`;
    for (let i = 0; i < n; i++) {
      const key = array ? i : names[i];
      if (room.left < 0) return 'it is too large';
      const d = getOwnPropertyDescriptor(v, key);
      if (!d || !('value' in d)) return `${path}.${key} is an accessor`;
      if (!array) {
        room.left -= key.length + 4;
        if (!wellFormed(key)) return `${path} has a key with half of a surrogate pair`;
        if (loose && d.value === undefined) continue;
      }
      if (typeof d.value === 'number' && isFinite(d.value)) room.left -= 2;
      else {
        const why = check(d.value, array ? `${path}[${key}]` : `${path}.${key}`, depth + 1, above, room, loose);
        if (why) return why;
      }
    }
    above.delete(v);
    return '';
  }

  function type(v) {
    if (v === null) return 'null';
    if (typeof v !== 'object') return typeof v;
    try {
      const name = isArray(v) ? 'Array' : v.constructor && typeof v.constructor.name === 'string' && v.constructor.name || slice(tag(v), 8, -1);
      return name === 'Array' || name === 'Object' ? name.toLowerCase() : slice(name, 0, 100);
    } catch (e) {
      return 'object';
    }
  }

  function text(v) {
    try {
      if (typeof v === 'function') return slice(`function ${v.name}`, 0, 200);
      return slice(typeof v === 'symbol' ? v.toString() : typeof v === 'object' && v !== null && !(v instanceof Errors) ? tag(v) : `${v}`, 0, 200);
    } catch (e) {
      return '';
    }
  }

  // encode gives { type, json } or { type, why, text }.
  function encode(v, limit, loose) {
    const t = type(v), room = { left: limit };
    let why, json;
    try {
      why = check(v, 'it', 0, new Sets(), room, loose);
      if (!why) json = stringify(v);
      if (json !== undefined && byteLength(json) > limit || room.left < 0) why = `it takes more than ${limit} bytes`;
    } catch (e) {
      why = slice(`it can't be read: ${text(e)}`, 0, 200);
    }
    return why ? { type: t, why, text: text(v) } : { type: t, json };
  }

  // host makes a function that calls one of the host. That which ends a phase keeps its second argument here.
  function host(id, name, keeps) {
    const f = function (...args) {
      let n = args.length;
      while (n && args[n - 1] === undefined) n--;
      const texts = [];
      for (let i = 0; i < n; i++) {
        if (keeps && i === 1) continue;
        const r = args[i] === undefined ? { json: 'null' } : encode(args[i], limits.value, true);
        if (r.why) throw new TypeErrors(`argument ${i + 1} of ${name} can't leave the session: ${r.why}`);
        texts.push(r.json);
      }
      if (keeps) kept = n > 1 ? { value: args[1] } : undefined;
      return call(id, texts);
    };
    defineProperty(f, 'name', { value: name });
    return f;
  }

  // error gives what is known of an exception.
  function error(e) {
    try {
      if (e instanceof Errors || e && typeof e === 'object' && typeof e.message === 'string') {
        return { name: slice(Text(e.name || 'Error'), 0, 200), message: slice(Text(e.message), 0, 65536), stack: slice(Text(e.stack || ''), 0, 65536) };
      }
    } catch (_) {
      return { name: 'Error', message: 'it can not be read', stack: '' };
    }
    return { name: type(e), message: text(e), stack: '' };
  }

  // decode gives a value from the host, with its functions.
  function decode(name, w) {
    let v = w.value;
    for (const f of w.funcs || []) {
      if (!f.path.length) v = host(f.id, name, false);
      else {
        let at = v;
        for (let i = 0; i < f.path.length - 1; i++) at = at[f.path[i]];
        at[f.path[f.path.length - 1]] = host(f.id, f.path[f.path.length - 1], false);
      }
    }
    return v;
  }

  function put(name, v) {
    gone.delete(name);
    if (!setProperty(global, name, v)) throw new TypeErrors(`${name} can't be set`);
  }

  function remove(name) {
    if (!has(global, name)) return;
    if (!deleteProperty(global, name)) {
      setProperty(global, name, undefined);
      gone.add(name);
    }
  }

  const there = (name) => has(global, name) && !(gone.has(name) && getProperty(global, name) === undefined);
  const plain = (v) => typeof v === 'object' && v !== null && !isArray(v);

  function patch(name, set, fields, aliases) {
    if (!plain(global[name])) put(name, {});
    const object = global[name];
    for (const key of keys(set)) {
      if (!setProperty(object, key, decode(key, set[key]))) throw new TypeErrors(`${name}.${key} can't be set`);
    }
    for (const key of fields) {
      if (!deleteProperty(object, key)) throw new TypeErrors(`${name}.${key} can't be deleted`);
      remove(key);
    }
    for (const key of aliases) {
      if (has(object, key)) put(key, object[key]);
    }
  }

  return {
    encode: (v) => encode(v, limits.value, false), error, limits,
    reserved: () => [...baseline],
    get: (names) => names.filter(there).map((name) => ({ name, ...encode(global[name], limits.value, false) })),
    set(values) {
      const decoded = keys(values).map((name) => [name, decode(name, values[name])]);
      for (const [name, v] of decoded) put(name, v);
    },
    patch,
    delete(names) { names.forEach(remove); },
    snapshot(except) {
      const not = new Sets(except);
      return getOwnPropertyNames(global).filter((name) => !baseline.has(name) && !not.has(name) && there(name)).sort()
        .map((name) => {
          const d = getOwnPropertyDescriptor(global, name);
          return { name, ...(d && 'value' in d ? encode(d.value, limits.entry, false) : { type: 'accessor', why: 'it is an accessor', text: '' }) };
        });
    },
    restore(entries) {
      const set = [];
      for (const e of entries) {
        if (baseline.has(e.name)) continue;
        put(e.name, e.value);
        set.push(e.name);
      }
      return set;
    },
    installFinal(name, id) { put(name, host(id, name, true)); },
    cross(b, set, fields, aliases) {
      if (kept) put(b.evidence, kept.value);
      else remove(b.evidence);
      kept = undefined;
      (b.delete || []).forEach(remove);
      patch(b.inputs, set, fields, aliases);
    },
  };
})
