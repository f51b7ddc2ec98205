package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
)

// containerProject makes a Go program that writes into a file by a mapping, and things to be changed.
const containerProject = `mkdir old sub pages big; for i in 1 2 3 4; do head -c 20000 /dev/zero >pages/a$i; echo $i >old/$i; echo $i >sub/$i; mkdir -p big/$i/d; echo $i >big/$i/d/f; done
	ln old/1 sub/linked; echo data >data
	printf 'module example.test/tool\n\ngo 1.22\n' >go.mod
	printf 'package main\n\nfunc one() int {\n\treturn 1\n}\n\n// In between.\n\nfunc two() int {\n\treturn 2\n}\n' >code.go
	cat >main.go <<'END'
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	f, err := os.OpenFile(os.Args[1], os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	m, err := syscall.Mmap(int(f.Fd()), 0, 20000, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	copy(m[8192:], fmt.Sprint(one(), " and ", two()))
	if err := syscall.Munmap(m); err != nil {
		panic(err)
	}
}
END`

// containerAgents are what the agents do: all of them build the program and run it, and each has its own change. The last one collides with the first.
var containerAgents = []struct{ name, edit string }{
	{"a1", `sed -i 's/return 1$/return 11/' code.go; rm -rf old`},
	{"a2", `sed -i 's/return 2$/return 22/' code.go; mv sub moved; ln data linked; echo more >>linked`},
	{"a3", `rm -rf big; mkdir -p new/deep; echo n >new/deep/n; ln -s ../data new/link; chmod 600 data`},
	{"a4", `sed -i 's/return 1$/return 111/' code.go; echo four >four`},
}

const containerBuild = `; go build -trimpath -buildvcs=false -o out/$AGENT .; out/$AGENT pages/$AGENT`

// goInContainer are the options that bring the compiler into a container, which needs no more than its own files.
func goInContainer(t *testing.T, agent string) []string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, cache, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return []string{"-v", root + ":" + root + ":ro", "-v", cache + ":/cache", "-e", "PATH=/bin:" + root + "/bin", "-e", "GOCACHE=/cache",
		"-e", "GOPROXY=off", "-e", "GOTOOLCHAIN=local", "-e", "CGO_ENABLED=0", "-e", "HOME=/tmp", "-e", "AGENT=" + agent}
}

func TestFourContainersWorkInFourBranches(t *testing.T) {
	t.Parallel()
	needMount(t)
	c := newContainer(t)
	script(t, c.ws, nil, containerProject)
	plain := memory(t)
	for _, a := range containerAgents {
		if err := treestate.Copy(c.ws, filepath.Join(plain, a.name)); err != nil {
			t.Fatal(err)
		}
	}
	want := filepath.Join(plain, "main")
	if err := treestate.Copy(c.ws, want); err != nil {
		t.Fatal(err)
	}
	sub := mountForTest(t, c.ws, mountOptions{})
	before := captureOf(t, sub)
	began := time.Now().UnixNano()
	ctx := context.Background()
	var all sync.WaitGroup
	for _, a := range containerAgents {
		if _, err := sub.client.Fork(ctx, overlay.ForkOptions{Name: a.name}); err != nil {
			t.Fatal(err)
		}
		options := goInContainer(t, a.name)
		for _, dir := range []string{filepath.Join(sub.dir, ".hyperfs/branches", a.name), filepath.Join(plain, a.name)} {
			all.Go(func() {
				if _, err := c.at(sub.dir, dir, a.edit+containerBuild, options...); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	mustBe(t, sub, before, "main, while containers have worked in branches")
	for _, a := range containerAgents {
		sameWork(t, a.name, plainState(t, filepath.Join(plain, a.name)), plainState(t, filepath.Join(sub.dir, ".hyperfs/branches", a.name)), began)
	}
	if t.Failed() {
		return
	}
	for i, a := range containerAgents {
		r, err := sub.client.Merge(ctx, a.name, overlay.MergeOptions{OnConflict: overlay.ConflictMerge})
		last := i == len(containerAgents)-1
		if last && (control.CodeOf(err) != control.BranchConflict || len(r.Conflicts) != 1 || r.Conflicts[0].Path != "code.go") {
			t.Errorf("%s: %v, conflicts %v", a.name, err, r.Conflicts)
		}
		if last {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v, conflicts %v", a.name, err, r.Conflicts)
		}
		// The plain directory has the same work done one after the other. What was built is what each has built alone.
		script(t, want, []string{"AGENT=" + a.name, "FROM=" + filepath.Join(plain, a.name)}, a.edit+`; mkdir -p out; cp -p $FROM/out/$AGENT out; cp -p $FROM/pages/$AGENT tmp; mv tmp pages/$AGENT`)
	}
	sameWork(t, "main", plainState(t, want), plainState(t, sub.dir), began)
	if err := sub.client.DropBranch(ctx, containerAgents[len(containerAgents)-1].name); err != nil {
		t.Error(err)
	}
	if err := sub.Check(true); err != nil {
		t.Error(err)
	}
}

// sameWork compares trees in which the same work was done: what was touched since then has another time in each.
func sameWork(t *testing.T, what string, want, got treestate.State, began int64) {
	t.Helper()
	same := treestate.Compare{Mtime: func(a, b treestate.Entry) bool { return a.Mtime == b.Mtime || a.Mtime >= began && b.Mtime >= began }}
	if diff := same.Diff(want, got); len(diff) > 0 {
		t.Errorf("%s is not what a plain directory is:\n\t%s", what, strings.Join(diff, "\n\t"))
	}
}

// The recipe in docs/containers.md, word by word. Only the engine's own flags are added, which it needs where tests run.
func TestTheRecipeOfFourAgentsInFourContainersWorks(t *testing.T) {
	t.Parallel()
	needMount(t)
	c := newContainer(t)
	text, err := os.ReadFile("../docs/containers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "## Four agents in four branches")
	_, recipe, _ := strings.Cut(after, "```sh\n")
	recipe, _, ok := strings.Cut(recipe, "```")
	if !ok {
		t.Fatal("the recipe is gone")
	}
	bin, err := checked.path()
	if err != nil {
		t.Fatal(err)
	}
	script(t, c.ws, nil, `seq 30 >list; echo x >gone; cat >agent.sh <<'END'
set -e
case $AGENT in
a1) sed -i 's/^3$/three/' list; rm gone ;;
a2) sed -i 's/^27$/twenty-seven/' list ;;
a3) mkdir new; echo $AGENT >new/file ;;
a4) sed -i 's/^3$/III/' list; echo four >four ;;
esac
END`)
	t.Cleanup(func() { _ = detach(c.ws) }) // if something fails before
	env := []string{"PATH=" + filepath.Dir(bin) + ":" + os.Getenv("PATH"), "PROJECT=" + c.ws, "IMAGE=" + c.image, "SAID=" + memory(t) + "/said"}
	script(t, "/", env, `podman() { shift; command podman --runtime runc run --network none --ulimit nofile=20000:20000 --ulimit nproc=100:100 "$@"; }
		{ `+recipe+` } >"$SAID"
		test "$(grep 'not merged' "$SAID")" = "a4 is not merged"; test "$(grep -c ' active ' "$SAID")" = 1; grep -q '^a4 .* active' "$SAID"
		test "$(sed -n '3p;27p' "$PROJECT/list")" = "three
twenty-seven"; test ! -e "$PROJECT/gone"; test "$(cat "$PROJECT/new/file")" = a3; test ! -e "$PROJECT/four"
		hyperfs -C "$PROJECT" merge --on-conflict theirs a4; test "$(sed -n '3p;27p' "$PROJECT/list")" = "III
27"; test -e "$PROJECT/four"; hyperfs unmount "$PROJECT"`)
}
