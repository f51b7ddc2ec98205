package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
)

// buildProject makes a directory with four projects: for the go command, for tsc, for npm, and a git repository.
const buildProject = `echo original >shared
	mkdir -p gomod/lib ts/src npm git
	printf 'module example.test/m\n\ngo 1.22\n' >gomod/go.mod
	printf 'package main\n\nimport "example.test/m/lib"\n\nfunc main() { println(lib.N()) }\n' >gomod/main.go
	printf 'package lib\n\nfunc N() int { return 0 }\n' >gomod/lib/lib.go
	printf 'package lib\n\nimport (\n\t"os"\n\t"strings"\n\t"testing"\n)\n\nfunc TestN(t *testing.T) {\n\tdir, _ := os.Getwd()\n\tif N() != 0 || !strings.HasPrefix(dir, os.Getenv("WS")) {\n\t\tt.Error(N(), dir)\n\t}\n}\n' >gomod/lib/lib_test.go
	cp -a "$TEMPLATE"/. ts; printf 'export const n: number = 0\n' >ts/src/n.ts; printf 'import { n } from "./n"\nexport const twice = (): number => 2 * n\n' >ts/src/twice.ts
	echo '{"compilerOptions":{"outDir":"out","declaration":true,"sourceMap":true,"incremental":true,"module":"commonjs","types":[]},"include":["src"]}' >ts/tsconfig.json
	echo '{"name":"p","version":"1.0.0","scripts":{"build":"node build.js","test":"node test.js"}}' >npm/package.json
	echo 0 >npm/n; echo 'require("fs").rmSync("dist", {recursive: true, force: true}); require("fs").mkdirSync("dist"); require("fs").writeFileSync("dist/n.json", JSON.stringify([process.cwd(), require("fs").readFileSync("n", "utf8")]))' >npm/build.js
	echo 'const [dir, n] = require("./dist/n.json"); if (dir !== process.cwd() || n.trim() !== process.env.N) process.exit(1)' >npm/test.js
	cd git; git init -q -b main .; for i in 1 2 3 4; do echo "line $i" >>file; git add .; git commit -qm "commit $i"; done`

// builds are what branches do, each in its own directory of the project and with its own $N.
var builds = []struct{ dir, run string }{
	{"gomod", `sed -i "s/return 0/return $N/" lib/lib.go; sed -i "s/N() != 0/N() != $N/" lib/lib_test.go
		go build -o bin/tool .; test "$(bin/tool 2>&1)" = $N; go vet ./...; go test -count=1 ./...`},
	{"ts", `sed -i "s/= 0/= $N/" src/n.ts; npx --no-install tsc -p .; test "$(node -p 'require("./out/twice").twice()')" = $((2 * N)); rm src/twice.ts`},
	{"npm", `echo $N >n; npm run --silent build; npm test --silent; mv build.js make.js; sed -i s/build.js/make.js/ package.json; npm run --silent build`},
	{"git", `sed -i "1s/.*/line $N/" file; echo $N >file$N; git add -A; git commit -qm "change $N"; git fsck --strict --no-progress; git gc -q; test -z "$(git status --porcelain)"; test "$(git rev-list --count HEAD)" = 5`},
}

// buildOf gives the script of the branch number n. It fails where it sees what main does meanwhile.
func buildOf(n int) string {
	b := builds[n%len(builds)]
	sees := `test "$(pwd -P)" = "$WS"; test "$(cat shared)" = original; test ! -e main; `
	return sees + "cd " + b.dir + "; " + b.run + "; cd ..; " + sees
}

func buildEnv(ws string, n int) []string {
	return []string{"WS=" + ws, "N=" + strconv.Itoa(n+1), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOPROXY=off",
		"GIT_AUTHOR_DATE=2024-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2024-01-02T03:04:05Z"}
}

// parallel is a workspace with branches at work, and a plain directory for each, where the same is done at the same path.
type parallel struct {
	*testing.T
	sub   *mountSubject
	env   []string
	plain string
	began int64 // ns since 1970
}

const parallelBranches = 16

func branchName(n int) string { return fmt.Sprintf("b%d", n) }

func (p parallel) branchDir(n int) string {
	return filepath.Join(p.sub.dir, ".hyperfs/branches", branchName(n))
}

func (p parallel) plainDir(n int) string { return filepath.Join(p.plain, branchName(n)) }

// inBranch does the work of a branch, as a user would have it done.
func (p parallel) inBranch(bin string, n int) error {
	args := []string{"-C", p.sub.dir, "exec", "--branch", branchName(n)}
	for _, kv := range buildEnv(p.sub.dir, n) {
		args = append(args, "--env", kv)
	}
	cmd := exec.Command(bin, append(args, "--", "sh", "-euc", buildOf(n))...)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), p.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("branch %d: %w\n%s", n, err, out)
	}
	return nil
}

// inPlain does the same in a plain directory.
func (p parallel) inPlain(n int) error {
	r, err := session.Command{
		Args: []string{"sh", "-euc", buildOf(n)}, Workspace: p.sub.dir, Source: p.plainDir(n), Env: append(buildEnv(p.sub.dir, n), p.env...), Capture: true,
	}.Run(context.Background())
	if err != nil {
		return fmt.Errorf("plain directory %d: %w\n%s%s", n, err, r.Stdout, r.Stderr)
	}
	return nil
}

// editMain changes main until it is told to end. What branches must not see comes first. Afterwards all is as before, but for the directory main.
func (p parallel) editMain(end <-chan struct{}) error {
	file := func(name string) string { return filepath.Join(p.sub.dir, name) }
	var keep [][2]string
	for _, name := range []string{"shared", "gomod/lib/lib.go", "ts/src/n.ts", "npm/n", "git/file"} {
		text, err := os.ReadFile(file(name))
		if err != nil {
			return err
		}
		keep = append(keep, [2]string{name, string(text)})
	}
	for i := 0; ; i++ {
		if err := os.MkdirAll(file(fmt.Sprintf("main/%d/deep", i%7)), 0o755); err != nil {
			return err
		}
		for _, k := range keep {
			if err := os.WriteFile(file(k[0]), fmt.Appendf(nil, "main was here %d\n", i), 0o644); err != nil {
				return err
			}
		}
		if err := os.Rename(file("npm/test.js"), file("npm/moved.js")); err != nil {
			return err
		}
		if err := os.RemoveAll(file(fmt.Sprintf("main/%d", (i+3)%7))); err != nil {
			return err
		}
		if err := os.Rename(file("npm/moved.js"), file("npm/test.js")); err != nil {
			return err
		}
		select {
		case <-end:
			for _, k := range keep {
				if err := os.WriteFile(file(k[0]), []byte(k[1]), 0o644); err != nil {
					return err
				}
			}
			return nil
		case <-time.After(time.Millisecond):
		}
	}
}

// same compares what a plain directory has become with a branch.
func (p parallel) same(n int) {
	p.Helper()
	sameWork(p.T, branchName(n), buildState(p.T, p.plainDir(n)), buildState(p.T, p.branchDir(n)), p.began)
}

// sameMain compares what main is to be with main, which has been written to all the time: nothing of its times can be said.
func (p parallel) sameMain(when string) {
	p.Helper()
	same := treestate.Compare{Mtime: func(_, _ treestate.Entry) bool { return true }}
	if diff := same.Diff(buildState(p.T, p.plainDir(parallelBranches)), buildState(p.T, p.sub.dir)); len(diff) > 0 {
		p.Errorf("main %s is not what a plain directory is:\n\t%s", when, strings.Join(diff, "\n\t"))
	}
}

// buildState captures a tree, but for main's own directory and what git notes of inodes.
func buildState(t *testing.T, dir string) treestate.State {
	t.Helper()
	s := plainState(t, dir)
	for path := range s {
		if path == "main" || strings.HasPrefix(path, "main/") || path == "git/.git/index" {
			delete(s, path)
		}
	}
	return s
}

func newParallel(t *testing.T) parallel {
	needMount(t)
	for _, name := range strings.Fields("npm node git go") {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, err.Error())
		}
	}
	p := parallel{T: t, env: toolEnv(t, true), plain: filepath.Join(memory(t), "plain")}
	ws := newWorkspace(t)
	script(t, ws, append(p.env, buildEnv(ws, 0)...), buildProject)
	if err := os.Mkdir(p.plain, 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range parallelBranches + 1 { // the last one becomes what main is to be
		if err := treestate.Copy(ws, p.plainDir(n)); err != nil {
			t.Fatal(err)
		}
	}
	p.sub = mountForTest(t, ws, mountOptions{})
	for n := range parallelBranches {
		if _, err := p.sub.client.Fork(context.Background(), overlay.ForkOptions{Name: branchName(n), Agent: branchName(n)}); err != nil {
			t.Fatal(err)
		}
	}
	p.began = time.Now().UnixNano()
	return p
}

// compared reports whether the same is done in a plain directory too: for what is merged, and for one that lives long. The others check themselves.
func compared(n int) bool { return n < 2*len(builds) || n == parallelBranches-1 }

// work has all branches, and all plain directories, at work at once.
func (p parallel) work() {
	bin, err := checked.path()
	if err != nil {
		p.Fatal(err)
	}
	var all sync.WaitGroup
	for n := range parallelBranches {
		all.Go(func() {
			if err := p.inBranch(bin, n); err != nil {
				p.Error(err)
			}
		})
		if !compared(n) {
			continue
		}
		all.Go(func() {
			if err := p.inPlain(n); err != nil {
				p.Error(err)
			}
		})
	}
	all.Wait()
}

// merge merges a branch, and says that main's directories are now those of a plain directory.
func (p parallel) merge(n int, o overlay.MergeOptions, becomes ...string) overlay.MergeResult {
	p.Helper()
	r, err := p.sub.client.Merge(context.Background(), branchName(n), o)
	if err != nil {
		p.Fatalf("merge of %s: %v, conflicts %v", branchName(n), err, r.Conflicts)
	}
	want := p.plainDir(parallelBranches)
	for _, dir := range becomes {
		if err := treestate.Remove(filepath.Join(want, dir)); err != nil {
			p.Fatal(err)
		}
		if err := treestate.Copy(filepath.Join(p.plainDir(n), dir), filepath.Join(want, dir)); err != nil {
			p.Fatal(err)
		}
	}
	p.sameMain("after the merge of " + branchName(n))
	return r
}

// It is not parallel to other tests: every command in a branch has a mount namespace of its own, with all mounts that there are, and the daemons
// of those would end no sooner than the command.
func TestSixteenBranchesBuildAtOnce(t *testing.T) {
	p := newParallel(t)
	end, edited := make(chan struct{}), make(chan error, 1)
	go func() { edited <- p.editMain(end) }()
	p.work()
	close(end)
	if err := <-edited; err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		return
	}
	for n := range parallelBranches {
		if compared(n) {
			p.same(n)
		}
	}
	p.sameMain("after the work in branches")

	// One of each kind first: nothing collides. Then others of the same kinds, which do.
	for n := range builds {
		p.merge(n, overlay.MergeOptions{}, builds[n].dir)
	}
	for n := 4; n < 8; n++ {
		for _, policy := range []string{overlay.ConflictReject, overlay.ConflictMerge} {
			r, err := p.sub.client.Merge(context.Background(), branchName(n), overlay.MergeOptions{OnConflict: policy})
			if control.CodeOf(err) != control.BranchConflict || len(r.Conflicts) == 0 || r.Conflicts[0].TheirsBy != branchName(n) {
				t.Errorf("%s of %s: %v, %v", policy, branchName(n), err, r.Conflicts)
			}
		}
	}
	p.sameMain("after merges that were refused")
	p.merge(4, overlay.MergeOptions{OnConflict: overlay.ConflictTheirs}, "gomod")
	if r := p.merge(5, overlay.MergeOptions{OnConflict: overlay.ConflictOurs}); len(r.Conflicts) == 0 {
		t.Error("nothing collides in ts")
	}
	for n := 7; n < 10; n++ {
		if err := p.sub.client.DropBranch(context.Background(), branchName(n)); err != nil {
			t.Error(err)
		}
	}
	p.same(15)
	if r := p.merge(6, overlay.MergeOptions{OnConflict: overlay.ConflictTheirs, Exclusive: true}, "npm"); len(r.Dropped) != 6 {
		t.Errorf("it has dropped %v", r.Dropped)
	}
	if list, err := p.sub.client.Branches(context.Background(), false); err != nil || len(list) > 0 {
		t.Errorf("%v are left: %v", list, err)
	}
	script(t, p.sub.dir, append(buildEnv(p.sub.dir, 4), p.env...), `cd gomod; go test -count=1 ./...; git -C ../git fsck --strict --no-progress`)
	if err := p.sub.Check(true); err != nil {
		t.Error(err)
	}
}
