// The driver of a Node.js session. The program runs on the main thread. The worker has the socket, so that an interrupt is heard while the program computes.
(() => {
  'use strict';
  const { Worker } = require('worker_threads');
  const vm = require('vm');
  const GLOBALS = __GLOBALS__;

  const worker = (socketFD) => {
    const { parentPort, workerData } = require('worker_threads');
    const acked = new Int32Array(workerData);
    const socket = new (require('net').Socket)({ fd: socketFD });
    let inspector;

    // interrupt tells the main thread, and ends what that computes for as long as it does not listen.
    const interrupt = (id) => {
      parentPort.postMessage({ interrupt: id });
      const insist = () => {
        if (Atomics.load(acked, 0) >= id) return;
        if (!inspector) {
          inspector = new (require('inspector').Session)();
          inspector.connectToMainThread();
        }
        inspector.post('Runtime.terminateExecution');
        setTimeout(insist, 100);
      };
      setTimeout(insist, 100);
    };

    let parts = [], have = 0;
    const take = (n) => {
      const all = parts.length === 1 ? parts[0] : Buffer.concat(parts, have);
      have -= n;
      parts = have ? [all.subarray(n)] : [];
      return all.subarray(0, n);
    };
    socket.on('data', (b) => {
      parts.push(b);
      have += b.length;
      for (;;) {
        if (have < 5) return;
        if (parts[0].length < 5) parts = [Buffer.concat(parts, have)];
        const n = parts[0].readUInt32BE(0);
        if (have < 5 + n) return;
        const frame = take(5 + n);
        if (frame[4] === 0x69) interrupt(JSON.parse(frame.subarray(5)).id); // 'i'
        else {
          const body = new Uint8Array(frame.subarray(5));
          parentPort.postMessage(body, [body.buffer]);
        }
      }
    });
    socket.on('close', () => process.exit());
    socket.on('error', () => process.exit());
    parentPort.on('message', (body) => {
      const head = Buffer.alloc(5);
      head.writeUInt32BE(body.length, 0);
      head[4] = 0x6d; // 'm'
      socket.cork();
      socket.write(head);
      socket.write(Buffer.from(body.buffer, body.byteOffset, body.length));
      socket.uncork();
    });
  };

  // Node.js has a parser inside, for its own prompt.
  const part = (name, exports = {}) => {
    const source = process.binding('natives')[name];
    const module = { exports };
    vm.compileFunction(source, ['exports', 'module', 'require'])(exports, module, () => acorn);
    return module.exports;
  };
  const quiet = process.noDeprecation;
  process.noDeprecation = true;
  let acorn = part('internal/deps/acorn/acorn/dist/acorn');
  const walk = part('internal/deps/acorn/acorn-walk/dist/walk');
  process.noDeprecation = quiet;

  // rewrite makes a program the body of an asynchronous function: what it declares at its top level become globals, it returns its last expression, and
  // imports by $import.
  const names = (pattern) => {
    switch (pattern.type) {
      case 'Identifier': return [pattern.name];
      case 'ObjectPattern': return pattern.properties.flatMap((p) => names(p.type === 'RestElement' ? p.argument : p.value));
      case 'ArrayPattern': return pattern.elements.flatMap((e) => e ? names(e) : []);
      case 'AssignmentPattern': return names(pattern.left);
      case 'RestElement': return names(pattern.argument);
    }
    return [];
  };
  const rewrite = (code) => {
    const tree = acorn.parse(code, { ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowReturnOutsideFunction: true, allowHashBang: true });
    const declared = new Set(), functions = [], edits = [];
    const replace = (start, end, text) => edits.push({ start, end, text });
    const declaration = (node, inHead) => {
      const first = node.declarations[0];
      replace(node.start, first.start, inHead ? '' : '0,');
      for (const d of node.declarations) {
        names(d.id).forEach((n) => declared.add(n));
        if (!d.init && node.kind !== 'var') replace(d.end, d.end, ' = undefined');
      }
    };
    const skip = () => {};
    walk.recursive(tree, null, {
      Function: skip, Class: skip,
      VariableDeclaration(node) { if (node.kind === 'var') declaration(node, false); },
      ForInStatement(node, state, c) { head(node, state, c); },
      ForOfStatement(node, state, c) { head(node, state, c); },
    });
    function head(node, state, c) {
      if (node.left.type === 'VariableDeclaration' && node.left.kind === 'var') declaration(node.left, true);
      c(node.body, state, 'Statement');
    }
    for (const node of tree.body) {
      if (node.type === 'VariableDeclaration' && node.kind !== 'var') declaration(node, false);
      if (node.type === 'FunctionDeclaration') {
        declared.add(node.id.name);
        functions.push(node.id.name);
      }
      if (node.type === 'ClassDeclaration') {
        declared.add(node.id.name);
        replace(node.start, node.start, `${node.id.name} = `);
        replace(node.end, node.end, ';');
      }
    }
    walk.full(tree, (node) => { if (node.type === 'ImportExpression') replace(node.start, node.start + 'import'.length, '$import'); });
    const last = tree.body[tree.body.length - 1];
    if (last && last.type === 'ExpressionStatement') replace(last.start, last.start, 'return ');
    edits.sort((a, b) => a.start - b.start || a.end - b.end);
    let text = '', at = code.startsWith('#!') ? code.search(/\n|$/) : 0;
    for (const e of edits) {
      text += code.slice(at, e.start) + e.text;
      at = e.end;
    }
    const prologue = [...declared].map((n) => `if (!(${JSON.stringify(n)} in globalThis)) globalThis.${n} = undefined;`).join('') +
      functions.map((n) => `globalThis.${n} = ${n};`).join('');
    return `(async ($import) => {${directives(tree)}${prologue}${text}${code.slice(at)}\n})`;
  };
  const directives = (tree) => tree.body.some((n) => n.directive === 'use strict') ? '"use strict";' : '';

  const acks = new SharedArrayBuffer(4), acked = new Int32Array(acks);
  const io = new Worker(`(${worker})(3)`, { eval: true, workerData: acks, execArgv: [], stdin: false, stdout: false, stderr: false });
  const exit = process.exit.bind(process), write = process.stderr.write.bind(process.stderr), encoder = new TextEncoder(), decoder = new TextDecoder();
  const post = io.postMessage.bind(io), parse = JSON.parse, stringify = JSON.stringify, Promises = Promise, then = Function.prototype.call.bind(Promise.prototype.then);
  io.on('exit', () => exit());

  const send = (text) => {
    const body = encoder.encode(text);
    post(body, [body.buffer]);
  };
  const waiting = new Map(); // calls of the host, by number
  let calls = 0, current = 0;
  const call = (id, args) => new Promises((resolve, reject) => {
    const n = ++calls;
    waiting.set(n, { resolve, reject, run: current });
    send(`{"call":${n},"fn":${id},"args":[${args.join(',')}]}`);
  });
  const globals = vm.runInThisContext(GLOBALS, 'globals')(globalThis, call, (s) => s.isWellFormed ? s.isWellFormed() : !/\p{Surrogate}/u.test(s), Buffer.byteLength);

  const entry = (e) => {
    const { json, ...rest } = e;
    const text = stringify(rest);
    return json === undefined ? text : `${text.slice(0, -1)},"value":${json}}`;
  };
  const reply = (id, text) => {
    if (current !== id) return;
    current = 0;
    send(`{"id":${id},${text}}`);
  };
  const succeed = (id, result) => reply(id, `"result":${result}`);
  const fail = (id, e) => reply(id, `"threw":${stringify(globals.error(e))}`);

  let runs = 0;
  const { pathToFileURL } = require('url'), { resolve } = require('path');
  const load = (name, options) => import(/^\.{0,2}\//.test(name) ? pathToFileURL(resolve(`${name}`)).href : name, options); // a program's own import needs a flag
  const run = (id, code) => {
    const filename = `run-${++runs}`;
    let text;
    try {
      text = rewrite(code);
    } catch (e) {
      if (e instanceof SyntaxError) e.stack = `${e}\n    at ${filename}`;
      throw e;
    }
    const result = new vm.Script(text, { filename }).runInThisContext()(load);
    then(result, (v) => {
      try {
        succeed(id, entry(globals.encode(v)));
      } catch (e) {
        fail(id, e);
      }
    }, (e) => fail(id, e));
  };

  const list = (entries) => `[${entries.map(entry).join(',')}]`;
  const operations = {
    hello(m) {
      globals.limits.value = m.value;
      globals.limits.entry = m.entry;
      return `{"names":${stringify(globals.reserved())},"version":${stringify(process.version)}}`;
    },
    get: (m) => `{"entries":${list(globals.get(m.names))}}`,
    set: (m) => { globals.set(m.values || {}); },
    patch: (m) => { globals.patch(m.name, m.values || {}, m.names || [], m.aliases || []); },
    delete: (m) => { globals.delete(m.names); },
    snapshot: (m) => `{"entries":${list(globals.snapshot(m.names || []))}}`,
    restore: (m) => `{"names":${stringify(globals.restore(m.entries))}}`,
    final: (m) => { globals.installFinal(m.name, m.fn); },
    cross: (m) => { globals.cross(m.boundary, m.values || {}, m.names || [], m.aliases || []); },
  };

  const request = (m) => {
    if (m.return) {
      const w = waiting.get(m.return);
      waiting.delete(m.return);
      if (!w) return;
      if (m.error !== undefined) w.reject(Object.assign(new Error(m.error), { name: 'HostError' }));
      else w.resolve(m.value);
      return;
    }
    current = m.id;
    try {
      if (m.op === 'execute') run(m.id, m.code);
      else succeed(m.id, operations[m.op](m) || '{}');
    } catch (e) {
      fail(m.id, e);
    }
  };
  let sync = 0; // the request whose first part is being run
  io.on('message', (m) => {
    if (m instanceof Uint8Array) {
      const r = parse(decoder.decode(m));
      if (!r.return) sync = r.id;
      request(r);
      if (!r.return) sync = 0;
      return;
    }
    // What is being run was terminated if it has not come to its end above. Else it waits for something: what it asked of the host has failed, and it may
    // go on from there. Whether it ends is for the host to see.
    Atomics.store(acked, 0, m.interrupt);
    if (current !== m.interrupt) return;
    if (sync === m.interrupt) {
      sync = 0;
      reply(m.interrupt, '"interrupted":true');
      return;
    }
    for (const [n, w] of waiting) {
      if (w.run !== m.interrupt) continue;
      waiting.delete(n);
      w.reject(Object.assign(new Error('the program was interrupted'), { name: 'InterruptedError' }));
    }
  });
  // What fails between two requests, or beside one, ends nothing.
  process.on('uncaughtException', (e) => { write(`${e && e.stack || e}\n`); });
})();
