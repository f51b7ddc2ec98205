package test

import (
	"os/exec"
	"testing"
)

// watchTools starts tools that watch the workspace, and has their results outside of it, in $SPARE.
const watchTools = `
	cat >watch.mjs <<'END'
import { createRequire } from "node:module"
import fs from "node:fs"
const { watch } = createRequire(process.env.SPARE + "/")("chokidar")
const say = (...words) => fs.appendFileSync(process.env.SPARE + "/events", words.join(" ") + "\n")
watch(["src", "assets"], { ignoreInitial: true }).on("all", (event, path) => say("chokidar", event, path)).on("ready", () => {
	fs.watch("src", { recursive: true }, (event, path) => say("node", event, path))
	say("ready")
})
END
	node watch.mjs >$SPARE/node.log 2>&1 & echo $! >$SPARE/pids
	node $SPARE/node_modules/typescript/bin/tsc --watch --preserveWatchOutput >$SPARE/tsc.log 2>&1 & echo $! >>$SPARE/pids`

// hear waits until a command succeeds, and tells what there was if it never does.
const hear = `
	hear() { for i in $(seq 400); do if "$@" 2>/dev/null; then return; fi; sleep 0.1; done; echo "never: $*"; tail -n 50 $SPARE/events $SPARE/*.log; exit 1; }
	heard() { for e in "$@"; do hear grep -qxF "chokidar $e" $SPARE/events; done; }
`

// What tsc compiles does not go and come back: it never finds a file again that it has missed, on any filesystem.
func TestToolsThatWatchRebuildAfterARollback(t *testing.T) {
	t.Parallel()
	needMount(t)
	for _, name := range []string{"npm", "node"} {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, err.Error())
		}
	}
	bin, err := checked.path()
	if err != nil {
		t.Fatal(err)
	}
	ws, spare := newWorkspace(t), memory(t)
	env := append(toolEnv(t, false), "HYPERFS="+bin, "SPARE="+spare, "WS="+ws, "npm_config_update_notifier=false")
	script(t, spare, env, `echo '{"name":"tools","version":"1.0.0"}' >package.json
		npm install --no-audit --no-fund --prefer-offline typescript@5.6.3 chokidar@4.0.3`)
	script(t, ws, env, `mkdir -p src/lib assets/lib; echo 'export const a: number = 1' >src/a.ts; echo 'export const l = 1' >src/lib/l.ts; echo b >assets/b; echo l >assets/lib/l
		echo '{"compilerOptions":{"outDir":"'$SPARE'/out","rootDir":"src","module":"commonjs","target":"es2020"},"include":["src"]}' >tsconfig.json`)
	sub := mountForTest(t, ws, mountOptions{})
	script(t, ws, env, watchTools)
	t.Cleanup(func() { // before the mount is taken away
		script(t, spare, env, `for pid in $(cat pids); do if kill $pid; then while kill -0 $pid 2>/dev/null; do sleep 0.05; done; fi; done`)
	})
	steps := []struct{ what, text string }{
		{"first", `hear grep -q ready $SPARE/events; hear grep -q 'a = 1' $SPARE/out/a.js; hear grep -q 'l = 1' $SPARE/out/lib/l.js; hear grep -q Watching $SPARE/tsc.log`},
		{"change", `$HYPERFS -C $WS snapshot
			echo 'export const a: number = 2' >src/a.ts; echo 'export const l = 2' >tmp; mv tmp src/lib/l.ts
			rm assets/b; mkdir assets/more; echo m >assets/more/m; mv assets/lib/l assets/lib/moved
			hear grep -q 'a = 2' $SPARE/out/a.js; hear grep -q 'l = 2' $SPARE/out/lib/l.js; hear grep -q 'more/m' $SPARE/events; : >$SPARE/events`},
		{"rollback", `$HYPERFS -C $WS rollback
			hear grep -q 'a = 1' $SPARE/out/a.js; hear grep -q 'l = 1' $SPARE/out/lib/l.js
			heard 'change src/a.ts' 'change src/lib/l.ts' 'add assets/b' 'unlink assets/more/m' 'add assets/lib/l' 'unlink assets/lib/moved'
			hear grep -qx 'node change a.ts' $SPARE/events; : >$SPARE/events`},
		{"undo", `$HYPERFS -C $WS undo
			hear grep -q 'a = 2' $SPARE/out/a.js; hear grep -q 'l = 2' $SPARE/out/lib/l.js
			heard 'change src/a.ts' 'change src/lib/l.ts' 'unlink assets/b' 'addDir assets/more' 'add assets/more/m' 'add assets/lib/moved'; : >$SPARE/events`},
		{"merge", `$HYPERFS -C $WS snapshot; $HYPERFS -C $WS fork x; cd .hyperfs/branches/x; echo 'export const a: number = 3' >src/a.ts; echo 'export const n = 1' >src/n.ts; rm assets/more/m; cd $WS
			$HYPERFS -C $WS merge x
			hear grep -q 'a = 3' $SPARE/out/a.js; hear test -e $SPARE/out/n.js
			heard 'change src/a.ts' 'add src/n.ts' 'unlink assets/more/m'`},
	}
	for _, step := range steps {
		if !t.Run(step.what, func(t *testing.T) { script(t, ws, env, hear+step.text) }) {
			return
		}
	}
	if err := sub.Check(true); err != nil {
		t.Error(err)
	}
}
