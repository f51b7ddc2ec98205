package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"golang.org/x/sys/unix"
)

// makeDeps makes a project as npm leaves it.
func makeDeps(t *testing.T, ws string) {
	t.Helper()
	put := func(name, content string) {
		if err := os.MkdirAll(filepath.Join(ws, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(ws, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("package.json", `{"name":"x"}`)
	put("src/main.js", "main")
	put(".git/HEAD", "ref: refs/heads/main")
	put("node_modules/.package-lock.json", "{}")
	for i := range 30 {
		put(fmt.Sprintf("node_modules/p%d/package.json", i), "{}")
		put(fmt.Sprintf("node_modules/p%d/lib/index.js", i), fmt.Sprint(i))
	}
}

// TestARollbackKeepsDependencies that were installed, updated and removed since, as npm does it: whole packages go and come by rename.
func TestARollbackKeepsDependencies(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws := newWorkspace(t)
	makeDeps(t, ws)
	sub := mountForTest(t, ws, mountOptions{flags: []string{"--preset", "deps"}})
	before, err := sub.Capture()
	must(t, err)
	id := mustSnapshot(t, sub)
	at := func(name string) string { return filepath.Join(ws, name) }
	for i := range 10 {
		p := fmt.Sprintf("node_modules/p%d", i)
		must(t, os.Rename(at(p), at(fmt.Sprintf("node_modules/.p%d-old", i))))
		must(t, os.MkdirAll(at(p+"/lib"), 0o755))
		must(t, os.WriteFile(at(p+"/lib/index.js"), []byte("updated"), 0o644))
		must(t, os.RemoveAll(at(fmt.Sprintf("node_modules/.p%d-old", i))))
	}
	for i := 10; i < 20; i++ {
		must(t, os.WriteFile(at(fmt.Sprintf("node_modules/p%d/lib/index.js", i)), []byte("rewritten"), 0o644))
	}
	must(t, os.RemoveAll(at("node_modules/p29")))
	must(t, os.WriteFile(at("src/main.js"), []byte("changed"), 0o644))
	must(t, os.WriteFile(at("package-lock.json"), []byte("{}"), 0o644))
	changed, err := sub.Capture()
	must(t, err)
	r, err := sub.client.Reconcile(context.Background(), "", id)
	must(t, err)
	if strings.Join(r.Created, " ") != "package-lock.json" || strings.Join(r.Modified, " ") != "src/main.js" || len(r.Deleted)+len(r.Renamed) > 0 {
		t.Errorf("%+v", r)
	}
	mustRollback(t, sub, id)
	after, err := sub.Capture()
	must(t, err)
	ignored := func(p string) bool { return strings.HasPrefix(p, "node_modules") || strings.HasPrefix(p, ".git") }
	for _, half := range []struct {
		name string
		want treestate.State
		in   func(p string) bool
	}{
		{"protected", before, func(p string) bool { return !ignored(p) }}, {"ignored", changed, ignored},
	} {
		for _, d := range treestate.Diff(partOf(half.want, half.in), partOf(after, half.in)) {
			t.Errorf("%s: %s", half.name, d)
		}
	}
	st, err := sub.client.Status(context.Background())
	must(t, err)
	if st.Slots > 0 {
		t.Errorf("%d names were recorded since the rollback", st.Slots)
	}
	must(t, sub.Check(true))
}

// partOf gives the entries of a state whose paths are in a set.
func partOf(s treestate.State, in func(p string) bool) treestate.State {
	part := treestate.State{}
	for p, e := range s {
		if in(p) {
			part[p] = e
		}
	}
	return part
}

// TestStrictModeStopsProgramsBeforeAnythingChanges with every call that changes something, through the kernel.
func TestStrictModeStopsProgramsBeforeAnythingChanges(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws := newWorkspace(t)
	makeDeps(t, ws)
	for _, passthrough := range []bool{true, false} {
		t.Run(fmt.Sprint("passthrough ", passthrough), func(t *testing.T) {
			flags := []string{"--preset", "deps", "--strict-ignored"}
			if passthrough {
				flags = append(flags, "--passthrough")
			}
			sub := mountForTest(t, ws, mountOptions{flags: flags})
			before, err := sub.Capture()
			must(t, err)
			for name, change := range changingCalls(ws) {
				if err := change(); !errors.Is(err, unix.EROFS) {
					t.Errorf("%s: %v", name, err)
				}
			}
			after, err := sub.Capture()
			must(t, err)
			for _, d := range treestate.Diff(before, after) {
				t.Error(d)
			}
			d, err := sub.client.Diagnostics(context.Background())
			must(t, err)
			if len(d.Ignored) == 0 {
				t.Error("nothing is listed")
			}
			for _, w := range d.Ignored {
				if w.Action != "blocked" {
					t.Errorf("%+v", w)
				}
			}
			text, err := os.ReadFile(filepath.Join(ws, "node_modules/p1/lib/index.js"))
			if string(text) != "1" || err != nil {
				t.Errorf("read %q, %v", text, err)
			}
		})
	}
}

// changingCalls are calls that change something in node_modules.
func changingCalls(ws string) map[string]func() error {
	at := func(name string) string { return filepath.Join(ws, name) }
	const dir = "node_modules/p1"
	file, fresh := at(dir+"/package.json"), at(dir+"/new")
	open := func(name string, flags int) func() error {
		return func() error {
			fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o644)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}
	}
	return map[string]func() error{
		"open for writing":         open(file, unix.O_WRONLY),
		"open for both":            open(file, unix.O_RDWR),
		"open to append":           open(file, unix.O_WRONLY|unix.O_APPEND),
		"open and truncate":        open(file, unix.O_RDONLY|unix.O_TRUNC),
		"creat":                    open(fresh, unix.O_WRONLY|unix.O_CREAT),
		"creat, exclusive":         open(fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL),
		"truncate":                 func() error { return unix.Truncate(file, 0) },
		"mkdir":                    func() error { return unix.Mkdir(fresh, 0o755) },
		"mkfifo":                   func() error { return unix.Mkfifo(fresh, 0o644) },
		"symlink":                  func() error { return unix.Symlink("x", fresh) },
		"link in":                  func() error { return unix.Link(at("src/main.js"), fresh) },
		"link out":                 func() error { return unix.Link(file, at("src/out")) },
		"unlink":                   func() error { return unix.Unlink(file) },
		"rmdir":                    func() error { return unix.Rmdir(at(dir + "/lib/")) },
		"rename":                   func() error { return unix.Rename(file, fresh) },
		"rename in":                func() error { return unix.Rename(at("src/main.js"), fresh) },
		"rename out":               func() error { return unix.Rename(file, at("src/out")) },
		"rename a root":            func() error { return unix.Rename(at("node_modules"), at("nm")) },
		"rename a directory there": func() error { return unix.Rename(at("src"), at("node_modules/src")) },
		"exchange": func() error {
			return unix.Renameat2(unix.AT_FDCWD, at("src/main.js"), unix.AT_FDCWD, file, unix.RENAME_EXCHANGE)
		},
		"chmod":    func() error { return unix.Chmod(file, 0o600) },
		"chown":    func() error { return unix.Chown(file, os.Getuid(), os.Getgid()) },
		"utimes":   func() error { return unix.Utimes(file, nil) },
		"setxattr": func() error { return unix.Setxattr(file, "user.a", []byte("x"), 0) },
		"map for writing": func() error {
			return open(file, unix.O_RDWR)() // there is no other way to a mapping that can be stored into
		},
		"fchmod of what is open to read": func() error {
			fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Fchmod(fd, 0o600)
		},
		"link of a nameless file": func() error {
			fd, err := unix.Open(at(dir), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, fresh, unix.AT_SYMLINK_FOLLOW)
		},
	}
}

// TestTrackingFindsWhatTheKernelHasCached: the file was looked up, read, and is open for writing and mapped when it becomes protected.
func TestTrackingFindsWhatTheKernelHasCached(t *testing.T) {
	t.Parallel()
	needMount(t)
	for _, passthrough := range []bool{true, false} {
		t.Run(fmt.Sprint("passthrough ", passthrough), func(t *testing.T) {
			ws := newWorkspace(t)
			makeDeps(t, ws)
			flags := []string{"--preset", "deps"}
			if passthrough {
				flags = append(flags, "--passthrough")
			}
			sub := mountForTest(t, ws, mountOptions{flags: flags})
			ctx := context.Background()
			name := filepath.Join(ws, "node_modules/p1/package.json")
			mustSnapshot(t, sub)
			must(t, os.WriteFile(name, []byte("{1}"), 0o644))
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			m, err := unix.Mmap(int(f.Fd()), 0, 3, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			defer unix.Munmap(m)
			_, err = sub.client.Track(ctx, []string{"node_modules/p1/package.json"})
			must(t, err)
			_, err = f.WriteAt([]byte("2"), 1)
			must(t, err)
			second := mustSnapshot(t, sub)
			m[1] = '3'
			third := mustSnapshot(t, sub)
			_, err = f.WriteAt([]byte("4"), 1)
			must(t, err)
			for _, want := range []struct{ id, text string }{{third, "{3}"}, {second, "{2}"}} {
				mustRollback(t, sub, want.id)
				text, err := os.ReadFile(name)
				if err != nil || string(text) != want.text {
					t.Errorf("%q, should be %q, %v", text, want.text, err)
				}
			}
		})
	}
}

// TestContractsSurviveAKill of the daemon, and what they protect does too.
func TestContractsSurviveAKill(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws := newWorkspace(t)
	makeDeps(t, ws)
	o := mountOptions{flags: []string{"--preset", "deps"}}
	sub := mountForTest(t, ws, o)
	ctx := context.Background()
	const lock = "node_modules/.package-lock.json"
	_, err := sub.client.Track(ctx, []string{lock})
	must(t, err)
	id := mustSnapshot(t, sub)
	_, err = sub.client.DeclareOutputs(ctx, control.DeclareOptions{Tool: "vite", Checkpoint: id, Outputs: []control.OutputsPath{{Path: "node_modules/out"}}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(ws, lock), []byte("{2}"), 0o644))
	must(t, os.WriteFile(filepath.Join(ws, "node_modules/out"), []byte("out"), 0o644))
	must(t, sub.kill())
	must(t, sub.open())
	tracked, err := sub.client.Tracked(ctx)
	must(t, err)
	contracts, err := sub.client.Outputs(ctx, id)
	must(t, err)
	if len(tracked) != 1 || len(contracts) != 1 || contracts[0].Outputs[0].Missing {
		t.Errorf("%v %+v", tracked, contracts)
	}
	mustRollback(t, sub, id)
	if text, err := os.ReadFile(filepath.Join(ws, lock)); string(text) != "{}" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(ws, "node_modules/out")); !os.IsNotExist(err) {
		t.Error(err)
	}
	must(t, sub.Check(true))
}

// TestARollbackOfTrackedFilesIsFinishedAfterAKill in the middle.
func TestARollbackOfTrackedFilesIsFinishedAfterAKill(t *testing.T) {
	t.Parallel()
	needMount(t)
	for _, point := range []string{"rollback-apply:1", "rollback-applied:1", "rollback-tracked:1"} {
		t.Run(point, func(t *testing.T) {
			ws := newWorkspace(t)
			makeDeps(t, ws)
			sub := mountForTest(t, ws, mountOptions{flags: []string{"--preset", "deps"}, env: []string{crash.EnvAt + "=" + point}})
			ctx := context.Background()
			names := []string{"node_modules/.package-lock.json", "node_modules/new"}
			_, err := sub.client.Track(ctx, names)
			must(t, err)
			id := mustSnapshot(t, sub)
			for _, name := range append(names, "src/main.js") {
				must(t, os.WriteFile(filepath.Join(ws, name), []byte("changed"), 0o644))
			}
			if _, err := sub.Rollback(id, false); err == nil {
				t.Fatal("the daemon was not killed")
			}
			must(t, sub.afterDeath())
			sub.o.env = nil
			must(t, sub.open())
			for name, want := range map[string]string{names[0]: "{}", names[1]: "", "src/main.js": "main"} {
				if text, _ := os.ReadFile(filepath.Join(ws, name)); string(text) != want {
					t.Errorf("%s has %q, should have %q", name, text, want)
				}
			}
			if _, err := sub.Undo(); err != nil {
				t.Fatal(err)
			}
			for _, name := range append(names, "src/main.js") {
				if text, _ := os.ReadFile(filepath.Join(ws, name)); string(text) != "changed" {
					t.Errorf("after the undo, %s has %q", name, text)
				}
			}
			must(t, sub.Check(true))
		})
	}
}

// TestACheckpointShowsIgnoredFilesAsTheyAreNow however often somebody has looked at them there before.
func TestACheckpointShowsIgnoredFilesAsTheyAreNow(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws := newWorkspace(t)
	makeDeps(t, ws)
	sub := mountForTest(t, ws, mountOptions{flags: []string{"--preset", "deps"}})
	id := mustSnapshot(t, sub)
	past := func(name string) string { return filepath.Join(ws, ".hyperfs/checkpoints", id, name) }
	const file, dir, gone = "node_modules/p1/lib/index.js", "node_modules/p1/lib", "node_modules/p2/package.json"
	must(t, os.Symlink("old", filepath.Join(ws, "node_modules/link")))
	look := func() string { // all that the kernel may keep of it
		t.Helper()
		text, err := os.ReadFile(past(file))
		must(t, err)
		st, err := os.Stat(past(file))
		must(t, err)
		target, err := os.Readlink(past("node_modules/link"))
		must(t, err)
		entries, err := os.ReadDir(past(dir))
		must(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		_, err = os.Lstat(past(gone))
		_, new := os.Lstat(past(dir + "/new"))
		main, err2 := os.ReadFile(past("src/main.js"))
		must(t, err2)
		return fmt.Sprint(string(text), " ", st.Size(), " ", st.Mode(), " ", target, " ", names, " ", err == nil, " ", new == nil, " ", string(main))
	}
	for range 2 {
		if got := look(); got != "1 1 -rw-r--r-- old [index.js] true false main" {
			t.Fatal(got)
		}
	}
	at := func(name string) string { return filepath.Join(ws, name) }
	must(t, os.WriteFile(at(file), []byte("rewritten"), 0o644))
	must(t, os.Chmod(at(file), 0o600))
	must(t, os.WriteFile(at(dir+"/new"), nil, 0o644))
	must(t, os.Remove(at("node_modules/link")))
	must(t, os.Symlink("new", at("node_modules/link")))
	must(t, os.RemoveAll(at("node_modules/p2")))
	must(t, os.WriteFile(at("src/main.js"), []byte("changed"), 0o644))
	if got := look(); got != "rewritten 9 -rw------- new [index.js new] false true main" {
		t.Error(got)
	}
	must(t, os.WriteFile(at(file), []byte("REWRITTEN"), 0o600)) // of the same length
	if got := look(); got != "REWRITTEN 9 -rw------- new [index.js new] false true main" {
		t.Error(got)
	}
	must(t, os.RemoveAll(at("node_modules/p1")))
	must(t, os.MkdirAll(at(dir), 0o755))
	must(t, os.WriteFile(at(file), []byte("installed"), 0o644))
	if got := look(); got != "installed 9 -rw-r--r-- new [index.js] false false main" {
		t.Error(got)
	}
}
