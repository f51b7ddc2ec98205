// Drives the npm package hyperion-delta for the benchmark: one command a line on stdin, one answer a line on stdout.
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { HyperionAgentSession } from "hyperion-delta";

const root = process.argv[2];
const session = new HyperionAgentSession(root);
const fs = createRequire(import.meta.url)("node:fs"); // the module that the package watches
let checkpoint;

// The same paths as treePath of tree.go.
const treePath = (i) => {
  const two = (n) => String(n).padStart(2, "0");
  return join(root, `d${two(Math.floor(i / 10000))}/e${two(Math.floor(i / 100) % 100)}/file${i}.ts`);
};

// The same changes as changeFiles of latency.go.
const change = (files, dirty) => {
  for (let i = 0; i < dirty; i++) {
    const path = treePath(i * Math.floor(files / dirty));
    fs.writeFileSync(path, "export const round = 0;\n");
    fs.writeFileSync(`${path}.new`, "export const round = 0;\n");
  }
};

const commands = {
  save: async () => { checkpoint = await session.snapshot(); },
  change: async (files, dirty) => change(Number(files), Number(dirty)),
  restore: async () => { await session.rollback(checkpoint); },
  stop: async () => { await session.dispose(); },
};
for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...args] = line.split(" ");
  try {
    await commands[name](...args);
    console.log("ok");
  } catch (error) {
    console.log(`${error.name}: ${error.message}`.replaceAll("\n", " "));
  }
  if (name === "stop") process.exit(0);
}
