package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

// tool is a program, or several, at work on a workspace.
type tool struct {
	name  string
	needs string // commands
	setup string // a shell script that makes the workspace, before it is mounted
	run   string // a shell script that works in the mount
	check string // a shell script that must succeed where run has been done, and no rollback since
}

// tools are at work in a directory of their own each. $TEMPLATE is where typescript is installed.
var tools = []tool{
	{
		name: "npm-install", needs: "npm node",
		setup: `cp -a "$TEMPLATE"/. .; mkdir src; echo 'export const x: number = 1' > src/x.ts`,
		run:   `npm install --no-audit --no-fund --prefer-offline is-odd@3.0.1 minimist@1.2.8 semver@7.6.3; npm uninstall --no-audit --no-fund minimist`,
		check: `node -e 'if (!require("is-odd")(3)) process.exit(1)'`,
	},
	{
		name: "npm-install-into-nothing", needs: "npm node",
		setup: `echo '{"name":"empty","version":"1.0.0"}' > package.json`,
		run:   `npm install --no-audit --no-fund --prefer-offline is-odd@3.0.1`,
		check: `node -e 'if (!require("is-odd")(3)) process.exit(1)'`,
	},
	{
		name: "tsc", needs: "npm node",
		setup: `cp -a "$TEMPLATE"/. .; mkdir src out
			for i in 1 2 3 4 5; do echo "export const f$i = (n: number): string => String(n + $i)" > src/f$i.ts; done
			npx --no-install tsc --outDir out --declaration --incremental --tsBuildInfoFile out/info src/*.ts
			echo 'export const f1 = (n: bigint): string => String(n)' > src/f1.ts`,
		run:   `rm src/f5.ts; npx --no-install tsc --outDir out --declaration --incremental --tsBuildInfoFile out/info --target es2020 --sourceMap src/*.ts`,
		check: `test -s out/f1.js.map; grep -q bigint out/f1.d.ts`,
	},
	{
		name: "git", needs: "git",
		setup: `git init -q -b main origin; cd origin
			for i in 1 2 3 4 5 6 7 8; do echo "line $i" >> file; echo $i > file$i; git add .; git commit -qm "commit $i"; done
			git switch -qc topic HEAD~3; echo topic > topic; git add .; git commit -qm topic; echo more >> topic; git commit -qam more; git switch -q main`,
		run: `git clone -q origin clone; cd origin
			echo changed >> file1; git commit -qam changed; git switch -q topic; git rebase -q main; git tag v1
			git stash list; echo dirty >> topic; git stash -q; git branch -D main; git reflog expire --expire=now --all; git gc -q --prune=now; git stash pop -q
			cd ../clone; git pull -q --rebase origin topic || true; git switch -qc other; git rm -q file2; git commit -qm removed`,
		check: `git -C origin fsck --strict --no-progress; git -C clone fsck --strict --no-progress; test -e origin/topic`,
	},
	{
		name: "go-build", needs: "go",
		setup: `mkdir -p cmd/a lib; printf 'module example.test/m\n\ngo 1.21\n' > go.mod
			printf 'package lib\n\nfunc Two() int { return 2 }\n' > lib/lib.go
			printf 'package main\n\nimport "example.test/m/lib"\n\nfunc main() { println(lib.Two()) }\n' > cmd/a/main.go`,
		run: `export GOCACHE="$PWD/.cache" GOFLAGS=-mod=mod GO111MODULE=on GOPROXY=off CGO_ENABLED=0
			go build -o bin/a ./cmd/a; sed -i 's/return 2/return 3/' lib/lib.go; go build -o bin/a ./cmd/a; go vet ./...`,
		check: `test "$(./bin/a 2>&1)" = 3`,
	},
	{
		name: "sqlite", needs: "sqlite3",
		setup: `sqlite3 a.db 'create table t(x integer primary key, y text); insert into t(y) values (hex(randomblob(500)));'
			for i in 1 2 3 4 5 6 7 8; do sqlite3 a.db 'insert into t(y) select hex(randomblob(500)) from t;'; done; cp a.db b.db`,
		run: `sqlite3 a.db 'update t set y = "changed" where x % 3 = 0; delete from t where x % 5 = 0; vacuum;'
			sqlite3 b.db 'pragma journal_mode = wal; begin; update t set y = x; commit; create index i on t(y); insert into t(y) values ("last");'
			sqlite3 c.db 'create table u(z); insert into u values (1);'`,
		check: `test "$(sqlite3 a.db 'pragma integrity_check')" = ok; test "$(sqlite3 b.db 'pragma integrity_check')" = ok; test "$(sqlite3 b.db 'select count(*) from t where y = "last"')" = 1`,
	},
	{
		name: "tar", needs: "tar",
		setup: `mkdir -p a/b/c; for i in $(seq 200); do head -c $((i * 37)) /dev/urandom > a/b/$i; done; ln a/b/1 a/b/c/one; ln -s ../b a/c
			chmod 500 a/b/c; touch -d '2001-02-03 04:05:06.789012345' a/b/7; tar cf all.tar a; chmod 700 a/b/c`,
		run:   `rm a/b/1?; echo new > a/b/7; tar xpf all.tar; mkdir other; tar xpf all.tar -C other; tar czf again.tgz other; rm -rf all.tar`,
		check: `test "$(readlink other/a/c)" = ../b; cmp a/b/17 other/a/b/17; test -e other/a/b/c/one`,
	},
	{
		name: "rsync", needs: "rsync setfacl setfattr",
		setup: `mkdir -p from/x/y to/x/old; for i in $(seq 100); do echo $i > from/x/$i; echo old $i > to/x/$i; done; ln from/x/1 from/x/y/1; ln -s nowhere from/x/s
			setfacl -m u:1234:rw from/x/2; setfattr -n user.k -v v from/x/3; touch -d '1999-01-01' from/x/y; echo keep > to/x/old/keep`,
		run:   `rsync -aHAX --delete from/ to/; rsync -a --inplace --checksum from/x/ to/z/; rm -rf from/x/y; rsync -aHAX --delete --backup --backup-dir=../saved from/ to/`,
		check: `test ! -e to/x/old; test -e saved/x/y/1; getfattr -n user.k to/x/3`,
	},
	{
		name: "rm-mv-chmod-ln", needs: "find setfacl",
		setup: `for d in a b c; do mkdir -p $d/1/2/3; for i in $(seq 120); do echo $d $i > $d/1/f$i; echo $i > $d/1/2/3/f$i; done; done
			ln a/1/f1 b/linked; ln a/1/f1 c/1/2/linked; setfacl -d -m u:1234:rwx b/1; chmod 555 c/1/2/3; mkfifo b/fifo`,
		run: `rm -rf a; mv b/1 moved; mv c b/c; mkdir a; mv b/c/1/2 a/2; mv a/2/3 . || { chmod u+w a/2/3; mv a/2/3 .; }; chmod -R go-rwx moved; chmod -R u+w 3; rm -rf 3
			ln b/linked again; ln -s again soft; ln -sfn moved soft; find . -type f -name 'f1*' -exec touch {} +; rm b/fifo; mkfifo fifo; rmdir a/nothing 2>/dev/null || true`,
		check: `test "$(stat -c %h again)" = 3; test ! -e 3; test "$(stat -c %a moved)" = 700 -o -d moved`,
	},
	{
		name: "sed-and-editors", needs: "sed patch",
		setup: `for i in $(seq 50); do seq $i > $i.txt; done; chmod 444 7.txt`,
		run: `sed -i s/1/one/ *.txt; printf 'x\n' >> 3.txt; : > 4.txt; cp 5.txt 5.txt~; mv 5.txt~ 5.txt; cp -p 9.txt 9.new; mv 9.new 10.txt
			printf -- '--- a/12.txt\n+++ b/12.txt\n@@ -2,1 +2,1 @@\n-2\n+two\n' | patch -p1; truncate -s 100000 20.txt; dd if=/dev/zero of=21.txt bs=1 count=1 seek=3 conv=notrunc status=none`,
		check: `grep -q two 12.txt; test "$(stat -c %s 20.txt)" = 100000`,
	},
}

func TestToolsAreUndoneExactly(t *testing.T) {
	t.Parallel()
	needMount(t)
	for _, tool := range tools {
		t.Run(tool.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range strings.Fields(tool.needs) {
				if _, err := exec.LookPath(name); err != nil {
					missing(t, err.Error())
				}
			}
			tool.test(t)
		})
	}
}

func (x tool) test(t *testing.T) {
	ws := filepath.Join(t.TempDir(), "workspace")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = treestate.Remove(ws) }) // there may be directories that their owner has to open up for that
	env := toolEnv(t, strings.Contains(x.needs, "npm"))
	script(t, ws, env, x.setup)
	sub := mountForTest(t, ws, mountOptions{})
	before := captureOf(t, sub)
	id, err := sub.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	script(t, ws, env, x.run)
	script(t, ws, env, x.check)
	after := captureOf(t, sub)
	if len(treestate.Diff(before, after)) == 0 {
		t.Fatal("the tool has changed nothing")
	}
	if _, err := sub.Rollback(id, false); err != nil {
		t.Fatal(err)
	}
	mustBe(t, sub, before, "after the rollback")
	if _, err := sub.Undo(); err != nil {
		t.Fatal(err)
	}
	mustBe(t, sub, after, "after the undo")
	script(t, ws, env, x.check)
	if _, err := sub.Undo(); err != nil {
		t.Fatal(err)
	}
	mustBe(t, sub, before, "after the second undo")
	if err := sub.Check(true); err != nil {
		t.Error(err)
	}
}

// mountForTest mounts a workspace and unmounts it when the test ends.
func mountForTest(t *testing.T, ws string, o mountOptions) *mountSubject {
	t.Helper()
	sub, err := newMountSubject(ws, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := within(hangAfter, sub.Close); err != nil {
			t.Error(err)
		}
	})
	return sub
}

func captureOf(t *testing.T, sub subject) treestate.State {
	t.Helper()
	s, err := sub.Capture()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustBe(t *testing.T, sub subject, want treestate.State, when string) {
	t.Helper()
	if err := captureIs(sub, want); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}

// script runs a shell script in dir, and fails the test if one of its commands fails.
func script(t *testing.T, dir string, env []string, text string) {
	t.Helper()
	cmd := exec.Command("sh", "-euc", text)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, text, out.String())
	}
}

// toolEnv is an environment in which tools behave the same for everybody.
func toolEnv(t *testing.T, npm bool) []string {
	t.Helper()
	who := "hyperfs"
	env := []string{
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "LC_ALL=C", "TZ=UTC",
		"GIT_AUTHOR_NAME=" + who, "GIT_AUTHOR_EMAIL=" + who + "@localhost",
		"GIT_COMMITTER_NAME=" + who, "GIT_COMMITTER_EMAIL=" + who + "@localhost",
	}
	if npm {
		env = append(env, "TEMPLATE="+template(t), "npm_config_update_notifier=false")
	}
	return env
}

// template gives a directory in which typescript is installed.
func template(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "template")
	text := fmt.Sprintf(`mkdir %[1]q; cd %[1]q; echo '{"name":"project","version":"1.0.0"}' > package.json
		npm install --no-audit --no-fund --prefer-offline typescript@5.6.3`, dir)
	script(t, "/", nil, text)
	return dir
}
