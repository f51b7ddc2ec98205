package fs_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// echoTime is for how long others work against an echo.
const echoTime = 500 * time.Millisecond

// everything gives effects of all kinds that a name could have had.
func everything(dir overlay.Inode, names ...string) (all []overlay.Effect) {
	for _, name := range names {
		for _, e := range []overlay.Effect{
			{Was: unix.S_IFREG, Is: unix.S_IFREG}, {Content: true}, {Attr: true}, {Is: unix.S_IFDIR}, {Was: unix.S_IFDIR}, {Is: unix.S_IFREG}, {Was: unix.S_IFREG},
		} {
			e.Dir, e.Name = dir, name
			all = append(all, e)
		}
	}
	return all
}

// helpScribble writes to files in a directory, as fast as it can, until its input ends: lines at the end of one, numbers into a mapping of another,
// and it makes and removes what it alone may. Then it says how far it got.
func helpScribble(args []string) error {
	dir := args[0]
	appended, err := os.OpenFile(filepath.Join(dir, "appended"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	mapped, err := unix.Open(filepath.Join(dir, "mapped"), unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	b, err := unix.Mmap(mapped, 0, 3*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	fmt.Println("ready")
	for i := 0; ; i++ {
		select {
		case <-ended:
			fmt.Println(i)
			return nil
		default:
		}
		if _, err := fmt.Fprintf(appended, "%08d\n", i); err != nil {
			return err
		}
		copy(b[i%3*4096:], fmt.Sprintf("%08d", i))
		if err := comeAndGo(dir, i); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
}

// comeAndGo makes and removes things, all of which must be as if nobody else was there.
func comeAndGo(dir string, i int) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	fd, err := unix.Open(at("came"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make a file: %w", err)
	}
	_, err = unix.Write(fd, []byte("content"))
	err = errors.Join(err, unix.Close(fd), os.Mkdir(at("dir"), 0o700), os.WriteFile(at("dir/below"), nil, 0o600), os.Remove(at("dir/below")), os.Remove(at("dir")))
	if b, e := os.ReadFile(at("came")); err != nil || e != nil || string(b) != "content" {
		return fmt.Errorf("%q, %w", b, errors.Join(err, e))
	}
	if err := errors.Join(os.Rename(at("came"), at("moved")), os.Remove(at("moved"))); err != nil {
		return err
	}
	for _, name := range []string{"came", "moved", "dir"} {
		if _, err := os.Lstat(at(name)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(at("still"), &st); err != nil || st.Nlink != 1 || st.Size != 5 || st.Mode != unix.S_IFREG|0o644 || st.Mtim.Sec != 1000000000 {
		return fmt.Errorf("what nobody changes has changed: %+v, %w", st, err)
	}
	return nil
}

func TestAnEchoLosesNothingOfWhatOthersDo(t *testing.T) {
	eachEcho(t, func(t *testing.T, m *mounted) {
		for _, name := range []string{"appended", "mapped", "still"} {
			m.write(t, name, "")
		}
		must(t, os.WriteFile(m.path("still"), []byte("still"), 0o644))
		must(t, os.Chtimes(m.path("still"), time.Unix(1000000000, 0), time.Unix(1000000000, 0)))
		must(t, os.Truncate(m.path("mapped"), 3*4096))
		p := startHelper(t, 0, "scribble", m.dir)
		root := m.w.Tree().Volume().Root()
		var tellers sync.WaitGroup
		for range 2 {
			tellers.Go(func() {
				for end := time.Now().Add(echoTime); time.Now().Before(end); {
					tell(m.server, everything(root, "appended", "mapped", "still", "came", "moved", "dir")...)
				}
			})
		}
		tellers.Wait()
		must(t, p.in.Close())
		rest, err := io.ReadAll(p.out)
		must(t, err)
		var rounds int
		if _, err := fmt.Sscan(string(rest), &rounds); err != nil || rounds == 0 {
			t.Fatalf("it has failed: %s", rest)
		}
		events := m.server.Counts()["watch_event"]
		t.Logf("%d rounds, %d events", rounds, events)
		if events == 0 {
			t.Error("there was no event")
		}
		checkScribbled(t, m.dir, rounds)
		must(t, m.server.Unmount(false))
		checkScribbled(t, m.workspace, rounds)
	})
}

// checkScribbled proves that all is there that was written.
func checkScribbled(t *testing.T, dir string, rounds int) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "appended"))
	must(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	n := 0
	for ; lines.Scan(); n++ {
		if lines.Text() != fmt.Sprintf("%08d", n) {
			t.Fatalf("line %d is %q", n, lines.Text())
		}
	}
	if n != rounds {
		t.Errorf("there are %d lines of %d", n, rounds)
	}
	b, err := os.ReadFile(filepath.Join(dir, "mapped"))
	must(t, err)
	for page := range 3 {
		last := rounds - 1
		for last%3 != page {
			last--
		}
		if last >= 0 && !strings.HasPrefix(string(b[page*4096:]), fmt.Sprintf("%08d", last)) {
			t.Errorf("page %d has %q, not %d", page, b[page*4096:page*4096+8], last)
		}
	}
}

func TestAnEchoOfVeryMuchIsBounded(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Echo: true})
	const dirs = 20
	var at []overlay.Inode
	for d := range dirs {
		name := fmt.Sprint("d", d)
		must(t, os.Mkdir(m.path(name), 0o755))
		n, _, err := m.w.Tree().Volume().Lookup(m.w.Tree().Volume().Root(), name)
		must(t, err)
		defer m.w.Tree().Volume().Forget(n, 1)
		at = append(at, n)
	}
	removed := func(files int) (all []overlay.Effect) {
		for d := range dirs {
			for f := range files {
				all = append(all, overlay.Effect{Dir: at[d], Path: fmt.Sprint("d", d), Name: fmt.Sprint("f", f), Was: unix.S_IFREG})
			}
		}
		return all
	}
	events := func() int { return int(m.server.Counts()["watch_event"]) }
	w := watch(t, m.dir, "d0", "d19")
	start := time.Now()
	tell(m.server, removed(100)...)
	t.Logf("of %d events %d were raised after %v", dirs*100, events(), time.Since(start))
	eventually(t, "all are raised", func() bool { return events() == dirs*100 })
	t.Logf("all after %v", time.Since(start))
	w.Sees(t, "d0: DELETE f0", "d0: DELETE f99", "d19: DELETE f0", "d19: DELETE f99")

	w.Fresh(t)
	tell(m.server, removed(600)...) // more than anybody would read
	eventually(t, "there is one of each directory", func() bool { return events() == dirs*100+dirs })
	if n := w.Sees(t, "d0: DELETE f0", "d19: DELETE f0"); n != 2 {
		t.Errorf("%d events", n)
	}
}

func TestAMountWithAnEchoUnderWayIsUnmounted(t *testing.T) {
	for _, lazy := range []bool{false, true} {
		m := mount(t, fs.Options{InPlace: true, Echo: true})
		var names []string
		for i := range 150 {
			names = append(names, fmt.Sprint("f", i))
			m.write(t, names[i], "x")
		}
		for range 5 {
			go tell(m.server, everything(m.w.Tree().Volume().Root(), names...)...)
		}
		eventually(t, "it has begun", func() bool { return m.server.Counts()["watch_event"] > 0 })
		start := time.Now()
		must(t, m.server.Unmount(lazy))
		m.server.Wait()
		t.Logf("unmounted after %v", time.Since(start))
		if entries, err := os.ReadDir(m.workspace); err != nil || len(entries) < len(names) {
			t.Errorf("%d files of %d are left: %v", len(entries), len(names), err)
		}
	}
}

func TestAnEchoWhoseMountIsCoveredTouchesNothing(t *testing.T) {
	m := mount(t, fs.Options{InPlace: true, Echo: true})
	root := m.w.Tree().Volume().Root()
	m.write(t, "f", "x")
	must(t, unix.Mount("tmpfs", m.dir, "tmpfs", 0, "size=1m"))
	covered := true
	uncover := func() {
		if covered {
			covered = false
			must(t, unix.Unmount(m.dir, 0))
		}
	}
	defer uncover()
	must(t, os.WriteFile(m.path("f"), []byte("of somebody else"), 0o600))
	must(t, os.Chtimes(m.path("f"), time.Unix(1, 0), time.Unix(1, 0)))
	eventually(t, "it is given up", func() bool {
		tell(m.server, everything(root, "f", "other")...)
		return strings.Contains(m.server.Features().EchoReason, "does not know its echo")
	})
	st, err := os.Stat(m.path("f"))
	if err != nil || !st.ModTime().Equal(time.Unix(1, 0)) {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := os.Stat(m.path("other")); err == nil {
		t.Error("something was made")
	}
	uncover()
}

// helpEchoDaemon mounts a workspace in place, and tells of changes without end.
func helpEchoDaemon(args []string) error {
	w, err := overlay.Open(overlay.Config{Workspace: args[0]})
	if err != nil {
		return err
	}
	s, err := fs.Mount(w.Tree(), args[0], fs.Options{InPlace: true, Echo: true})
	if err != nil {
		return err
	}
	effects := everything(w.Tree().Volume().Root(), "f", "g", "h")
	for {
		tell(s, effects...)
		if s.Counts()["watch_event"] > 0 {
			fmt.Println("ready")
		}
	}
}

// childrenOf gives the processes that a process has started.
func childrenOf(t *testing.T, pid int) []string {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	must(t, err)
	var all []string
	for _, list := range lists {
		b, err := os.ReadFile(list)
		must(t, err)
		all = append(all, strings.Fields(string(b))...)
	}
	return all
}

func TestAnEchoEndsWithItsDaemon(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	for _, name := range []string{"f", "g", "h"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("content"), 0o644))
	}
	p := startHelper(t, 0, "echodaemon", dir)
	t.Cleanup(func() { _, _ = fs.CleanDeadMount(dir) })
	go func() { _, _ = io.Copy(io.Discard, p.out) }()
	children := childrenOf(t, p.Process.Pid)
	if len(children) == 0 {
		t.Fatal("there is no echo")
	}
	must(t, p.Process.Kill())
	_ = p.Wait()
	eventually(t, "the echo has ended", func() bool {
		for _, pid := range children {
			if b, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !strings.Contains(string(b), ") Z ") {
				return false
			}
		}
		return true
	})
	cleaned, err := fs.CleanDeadMount(dir)
	must(t, err)
	if !cleaned {
		t.Error("there was no dead mount")
	}
	for _, name := range []string{"f", "g", "h"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != "content" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	w, err := overlay.Open(overlay.Config{Workspace: dir})
	must(t, err)
	must(t, w.Close())
}
