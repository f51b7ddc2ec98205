package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/treestate"
)

// writersSetup is the workspace that writers change.
const writersSetup = `mkdir -p d/sub; for f in a b c held d/x d/sub/y; do echo "old $f" > $f; done; ln a d/linked; chmod 640 c; touch -d '2003-04-05 06:07:08.090909090' c`

// writers is a shell script whose processes change the workspace in every relation to it that a process can have. It ends when all have changed something; the
// daemonised one goes on, with a file open, and its ID is in $PIDS.
const writers = `
	sh -c 'echo child >> a; rm b; mv d moved'
	sh -c 'sh -c "sleep 0.2; echo grandchild >> c; chmod 600 c; mkdir new; echo n > new/n; : > grandchild.done" & exit 0'
	setsid sh -c 'exec 3>>held; echo $$ > "$PIDS"; echo daemon >&3; ln -sf nowhere link; : > daemon.done; while :; do sleep 0.02; echo more >&3; done' < /dev/null > /dev/null 2>&1 &
	while ! [ -e grandchild.done -a -e daemon.done ]; do sleep 0.02; done`

// Whoever a process was started by, and whether it still runs: what it has changed goes back.
func TestChangesOfAllDescendantsGoBack(t *testing.T) {
	t.Parallel()
	needMount(t)
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, sub *mountSubject, env []string, daemon func() int)
	}{
		{"run --rollback, with a daemon that goes on until then", func(t *testing.T, sub *mountSubject, env []string, daemon func() int) {
			stopped := writers + `; kill -STOP $(cat "$PIDS")` // what it writes after the rollback would stay
			hyperfsIn(t, sub.dir, env, "run", "--rollback", "--", "sh", "-euc", stopped)
			must(t, syscall.Kill(daemon(), syscall.SIGKILL))
		}},
		{"run, that fails", func(t *testing.T, sub *mountSubject, env []string, daemon func() int) {
			bin, err := checked.path()
			must(t, err)
			cmd := exec.Command(bin, "-C", sub.dir, "run", "--", "sh", "-uc", writers+`; kill -KILL $(cat "$PIDS"); exit 3`)
			cmd.Env = append(os.Environ(), env...)
			if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 3 {
				t.Fatalf("it ended with %v: %s", cmd.ProcessState, out)
			}
		}},
		{"exec, that ends the daemon", func(t *testing.T, sub *mountSubject, env []string, daemon func() int) {
			id, err := sub.Snapshot()
			must(t, err)
			hyperfsIn(t, sub.dir, env, "exec", "--", "sh", "-euc", writers)
			if err := syscall.Kill(daemon(), 0); err == nil && !zombie(daemon()) {
				t.Errorf("the daemon %d still runs", daemon())
			}
			if d, err := sub.client.Diff(context.Background(), control.Between{From: id}, true); err != nil || len(d.Changes) < 9 {
				t.Fatalf("the diff is %+v, %v", d.Changes, err)
			}
			hyperfsIn(t, sub.dir, env, "rollback", id)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ws := filepath.Join(t.TempDir(), "workspace")
			must(t, os.Mkdir(ws, 0o755))
			script(t, ws, nil, writersSetup)
			sub := mountForTest(t, ws, mountOptions{})
			before := captureOf(t, sub)
			pids := filepath.Join(t.TempDir(), "pid")
			daemon := func() int {
				text, err := os.ReadFile(pids)
				must(t, err)
				pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
				must(t, err)
				return pid
			}
			tt.do(t, sub, []string{"PIDS=" + pids}, daemon)
			mustBe(t, sub, before, "after the rollback")
		})
	}
}

// hyperfsIn runs a command of hyperfs that is about a workspace.
func hyperfsIn(t *testing.T, ws string, env []string, args ...string) string {
	t.Helper()
	out, err := checked.run(env, append([]string{"-C", ws}, args...)...)
	must(t, err)
	return out
}

// packagesSetup makes two versions of a package of 320 files, the later of which changes 320 files of another package in place when it is installed.
const packagesSetup = `
	mkdir -p many/lib kept/lib
	printf '{"name":"kept","version":"1.0.0"}' > kept/package.json
	for i in $(seq 320); do
		echo "module.exports = $i" > many/lib/f$i.js
		echo "exports.kept = $i" > kept/lib/k$i.js
	done
	printf '{"name":"many","version":"1.0.0"}' > many/package.json
	(cd many && npm pack --silent --pack-destination ..); (cd kept && npm pack --silent --pack-destination ..)
	for i in $(seq 320); do echo "module.exports = -$i // rewritten" > many/lib/f$i.js; done
	printf '%s' 'const fs = require("fs"), d = process.env.INIT_CWD + "/node_modules/kept/lib/"; for (const f of fs.readdirSync(d)) fs.appendFileSync(d + f, "// patched\n")' > many/patch.js
	printf '{"name":"many","version":"2.0.0","scripts":{"postinstall":"node patch.js"}}' > many/package.json
	(cd many && npm pack --silent --pack-destination ..)`

// No flag and no configuration: node_modules is protected like everything else.
func TestNpmInstallOverHundredsOfFilesIsUndoneExactly(t *testing.T) {
	t.Parallel()
	needMount(t)
	for _, name := range []string{"npm", "node"} {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, err.Error())
		}
	}
	packages := t.TempDir()
	env := append(toolEnv(t, false), "npm_config_update_notifier=false", "npm_config_offline=true", "npm_config_audit=false", "npm_config_fund=false",
		"npm_config_cache="+filepath.Join(packages, "cache"), "P="+packages)
	script(t, packages, env, packagesSetup)
	ws := filepath.Join(t.TempDir(), "workspace")
	must(t, os.Mkdir(ws, 0o755))
	t.Cleanup(func() { _ = treestate.Remove(ws) })
	script(t, ws, env, `echo '{"name":"project","version":"1.0.0"}' > package.json; npm install "$P/kept-1.0.0.tgz" "$P/many-1.0.0.tgz"`)
	sub := mountForTest(t, ws, mountOptions{})
	before := captureOf(t, sub)
	id, err := sub.Snapshot()
	must(t, err)
	const install = `npm install --foreground-scripts "$P/many-2.0.0.tgz"; test "$(node -p 'require("./node_modules/many/lib/f7.js")')" = -7; grep -q patched node_modules/kept/lib/k320.js`
	script(t, ws, env, install)
	rewritten := map[string]int{}
	d, err := sub.client.Diff(context.Background(), control.Between{From: id}, true)
	must(t, err)
	for _, c := range d.Changes {
		parts := strings.SplitN(c.Path, "/", 3)
		if before[c.Path].IsRegular() && parts[0] == "node_modules" && len(parts) == 3 {
			rewritten[parts[1]]++
		}
	}
	if rewritten["many"] < 300 || rewritten["kept"] < 300 {
		t.Fatalf("only so many files were rewritten: %v", rewritten)
	}
	if _, err := sub.Rollback(id, false); err != nil {
		t.Fatal(err)
	}
	mustBe(t, sub, before, "after the rollback")
	script(t, ws, env, `test "$(node -p 'require("./node_modules/many/lib/f7.js")')" = 7; ! grep -q patched node_modules/kept/lib/k320.js`)
	hyperfsIn(t, ws, env, "run", "--rollback", "--quiet", "--", "sh", "-euc", install)
	mustBe(t, sub, before, fmt.Sprintf("after run --rollback of %s", install))
}
