//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/treefs"
	"golang.org/x/sys/unix"
)

// TestPinnedStateWithIgnoredPathsStaysWhatItWas when everything is ignored, or one directory, or what is in it.
func TestPinnedStateWithIgnoredPathsStaysWhatItWas(t *testing.T) {
	for _, patterns := range [][]string{{"*"}, {"dir/"}, {"dir/*", "!dir/sub"}} {
		t.Run(strings.Join(patterns, " "), func(t *testing.T) {
			for _, lower := range []string{"tmpfs", "overlayfs"} {
				if lower == "overlayfs" && patterns[0] != "*" {
					continue
				}
				next := lowers[lower](t)
				for name, change := range changes {
					if cannot[lower][name] != "" {
						continue
					}
					t.Run(lower+" "+name, func(t *testing.T) {
						s := spaceWith(t, overlay.Config{Workspace: next(), Ignore: patterns})
						if patterns[0] != "*" { // a file with names of both kinds is one if everything was recorded since the checkpoint
							id := s.snapshot()
							keep := s.pinOf(id)
							s.ok(s.w.Drop(context.Background(), id))
							pinAndChange(t, s, func(s *space) { s.unpin(keep); change(s) })
							return
						}
						pinAndChange(t, s, change)
					})
				}
			}
		})
	}
}

// pinOf pins the state of a checkpoint, and opens it.
func (s *space) pinOf(id string) *pinned {
	s.Helper()
	p := &pinned{space: s, pin: checkpoint.Pin{Owner: fmt.Sprint("owner ", time.Now().UnixNano())}}
	s.ok(s.w.Pin(id, p.pin.Owner, func(_ *checkpoint.Tx, c checkpoint.Checkpoint) error {
		if c.ID != id {
			s.Errorf("the checkpoint that was pinned is %q", c.ID)
		}
		p.pin.Epoch = c.Epoch
		return nil
	}))
	p.open()
	return p
}

// has compares what is in files of the state; "" means that there is none.
func (p *pinned) has(want map[string]string) {
	p.Helper()
	for path, content := range want {
		got, err := p.read(path)
		if content == "" && err == unix.ENOENT || err == nil && got == content {
			continue
		}
		p.Errorf("in the state, %s has %q, should have %q (%v)", path, got, content, err)
	}
}

func (p *pinned) read(path string) (string, error) {
	id := p.state.Root()
	for _, name := range split(path) {
		e, err := p.state.Lookup(id, name)
		if err != nil {
			return "", err
		}
		id = e.ID
	}
	f, err := p.state.Open(id)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, 100)
	n, err := f.ReadAt(b, 0)
	return string(b[:n]), err
}

func (s *space) unpin(p *pinned) {
	s.Helper()
	p.state.Close()
	s.ok(s.w.Unpin(p.pin, func(*checkpoint.Tx) error { return nil }))
}

// TestAPinHasIgnoredPathsAsTheyAreThen and all else as it was at the checkpoint, whatever was moved from one to the other.
func TestAPinHasIgnoredPathsAsTheyAreThen(t *testing.T) {
	s := deps(t)
	s.write("src/moved.js", "moved")
	s.ok(os.Link(s.dir+"/src/moved.js", s.dir+"/node_modules/linked.js"))
	id := s.snapshot()
	s.overwrite("src/main.js", "MAIN", 0)
	s.overwrite("node_modules/left/index.js", "LEFT", 0)
	s.unlink("node_modules/.cache/meta.json")
	s.write("node_modules/new.js", "new")
	s.rename("src/lib", "node_modules/lib", 0)
	s.rename("node_modules/left", "left", 0)
	s.write("node_modules/lib/more.js", "more")
	p := s.pinOf(id)
	want := map[string]string{
		"src/main.js": "main", "src/lib/util.js": "util", "src/moved.js": "moved", "left/index.js": "", "src/lib/more.js": "",
		"node_modules/left/index.js": "", "node_modules/.cache/meta.json": "", "node_modules/new.js": "new",
		"node_modules/lib/util.js": "util", "node_modules/lib/more.js": "more", "node_modules/linked.js": "moved",
	}
	p.has(want)
	p.want = p.captured()
	second := s.pinOf(id)
	if second.pin.Epoch != p.pin.Epoch {
		t.Error("two branches of one checkpoint have different states")
	}
	check := func() {
		t.Helper()
		p.same()
		p.has(want)
	}
	s.removeAll("node_modules")
	s.removeAll("src")
	s.mkdir("node_modules")
	s.write("node_modules/new.js", "NEW")
	check()
	s.rollback(id)
	check()
	s.reads(map[string]string{"src/lib/util.js": "util", "node_modules/new.js": "NEW"})
	s.undo()
	check()
	s.reads(map[string]string{"src/lib/util.js": "", "node_modules/new.js": "NEW"})
	_, err := s.w.GC(context.Background())
	s.ok(err)
	s.ok(s.w.Drop(context.Background(), id))
	check()
	for _, x := range []*pinned{p, second} {
		x.state.Close()
	}
	s.reopen()
	s.sound()
	p.open()
	check()
	p.state.Close()
	s.cfg.Ignore = []string{"src/"} // a pinned state goes by the patterns of its time
	s.reopen()
	p.open()
	check()
	p.state.Close()
	s.cfg.Ignore = nil
	s.reopen()
	p.open()
	check()
	s.unpin(p)
	second.open()
	second.has(want)
	s.unpin(second)
	s.sound()
}

// captured gives all that the state has.
func (p *pinned) captured() treestate.State {
	p.Helper()
	got, err := treefs.CaptureState(p.state)
	p.ok(err)
	return got
}

// TestIgnoredPathsAreRecordedOnlyWhilePinned, and nothing of an earlier time with pins shows in a later pin.
func TestIgnoredPathsAreRecordedOnlyWhilePinned(t *testing.T) {
	s := deps(t)
	ctx := context.Background()
	id := s.snapshot()
	install := func(version string) {
		s.overwrite("node_modules/left/index.js", version, 0)
		s.unlink("node_modules/.cache/meta.json")
		s.write("node_modules/.cache/meta.json", version)
	}
	install("1")
	if st := s.w.Status(); st.Slots+st.Inodes > 0 {
		t.Errorf("%d names and %d inodes were recorded without a pin", st.Slots, st.Inodes)
	}
	p := s.pinOf(id)
	install("2")
	if st := s.w.Status(); st.Slots == 0 || st.Inodes == 0 {
		t.Errorf("%d names and %d inodes were recorded with a pin", st.Slots, st.Inodes)
	}
	if got := s.changes(id); got != "" {
		t.Error("the diff of main has", got)
	}
	exact := s.snapshot()
	install("3")
	q := s.pinOf(exact)
	q.has(map[string]string{"node_modules/left/index.js": "2eft", "node_modules/.cache/meta.json": "2"}) // as at its checkpoint, as there was a pin
	p.has(map[string]string{"node_modules/left/index.js": "1eft", "node_modules/.cache/meta.json": "1"})
	s.unpin(q)
	s.unpin(p)
	s.ok(s.w.Drop(ctx, exact))
	before := s.w.Status()
	s.mkdir("node_modules/right")
	for i := range 20 {
		s.write(fmt.Sprint("node_modules/right/", i), "x")
	}
	s.removeAll("node_modules/right")
	if st := s.w.Status(); st.Slots > before.Slots || st.Inodes > before.Inodes {
		t.Errorf("%d names and %d inodes were recorded after the last pin", st.Slots-before.Slots, st.Inodes-before.Inodes)
	}
	install("4")
	r := s.pinOf(id)
	r.has(map[string]string{"node_modules/left/index.js": "4eft", "node_modules/.cache/meta.json": "4"})
	s.overwrite("node_modules/left/index.js", "5", 0)
	r.has(map[string]string{"node_modules/left/index.js": "4eft"})
	s.unpin(r)
	s.ok(s.w.Drop(ctx, id))
	_, err := s.w.GC(ctx)
	s.ok(err)
	s.sound()
	if d := s.w.Diagnostics(); d.TrashFiles+d.Backups != 0 {
		t.Errorf("%d old inodes and %d preimages are left when nothing needs them", d.TrashFiles, d.Backups)
	}
}

// TestAPinHoldsWhatIsOpenForWriting past the daemon in an ignored place: of that nothing was saved when it was opened.
func TestAPinHoldsWhatIsOpenForWriting(t *testing.T) {
	s := deps(t)
	id := s.snapshot()
	n, _, err := s.tr.Lookup(s.at("node_modules/left"), "index.js")
	s.ok(err)
	h, err := s.tr.Open(n, unix.O_RDWR, true, nil)
	s.ok(err)
	defer h.Release()
	write := func(text string) {
		if _, err := unix.Pwrite(h.Fd(), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	write("LEFT")
	p := s.pinOf(id)
	write("left")
	p.has(map[string]string{"node_modules/left/index.js": "LEFT"})
	s.unpin(p)
}

// TestUndoLeavesIgnoredPathsThatWereChangedSince also where their changes are recorded, and also that of an undo.
func TestUndoLeavesIgnoredPathsThatWereChangedSince(t *testing.T) {
	s := deps(t)
	id := s.snapshot()
	p := s.pinOf(id)
	s.overwrite("src/main.js", "MAIN", 0)
	s.rollback(id)
	version := 0
	install := func() map[string]string {
		version++
		s.unlink("node_modules/left/index.js")
		s.write("node_modules/left/index.js", fmt.Sprint(version))
		_, err := s.w.GC(context.Background())
		s.ok(err)
		return map[string]string{"node_modules/left/index.js": fmt.Sprint(version)}
	}
	for i := range 5 {
		want := install()
		s.undo()
		s.reads(want)
		s.reads(map[string]string{"src/main.js": []string{"MAIN", "main"}[i%2]})
	}
	p.has(map[string]string{"node_modules/left/index.js": "left"})
	s.unpin(p)
	s.sound()
}

// TestChangesOfIgnoredPathsWhileNobodyWatchesAreFoundForAPin and do no harm to the live tree's checkpoints.
func TestChangesOfIgnoredPathsWhileNobodyWatchesAreFoundForAPin(t *testing.T) {
	s := deps(t)
	id := s.snapshot()
	p := s.pinOf(id)
	p.state.Close()
	s.ok(s.w.Close())
	time.Sleep(20 * time.Millisecond)
	s.ok(os.WriteFile(filepath.Join(s.dir, "node_modules/left/index.js"), []byte("outside"), 0o644))
	s.open()
	p.open()
	if got, err := p.read("node_modules/left/index.js"); err != unix.EIO {
		t.Errorf("what nobody knows any more is %q, %v", got, err)
	}
	p.has(map[string]string{"src/main.js": "main", "node_modules/.cache/meta.json": "meta 1"})
	s.overwrite("src/main.js", "MAIN", 0)
	s.rollback(id)
	s.reads(map[string]string{"src/main.js": "main", "node_modules/left/index.js": "outside"})
	s.unpin(p)
}

// TestDirectoriesRemovedBetweenACheckpointAndItsPin can't be moved on overlayfs, so that nothing is left of them but records.
func TestDirectoriesRemovedBetweenACheckpointAndItsPin(t *testing.T) {
	dir := testfs.Overlay(t, func(lower string) { fillDeps(lower) })
	s := spaceWith(t, overlay.Config{Workspace: dir, Ignore: []string{"node_modules/"}})
	s.mkdir("src/node_modules")
	s.write("src/node_modules/a", "a")
	id := s.snapshot()
	s.removeAll("src")
	p := s.pinOf(id)
	p.has(map[string]string{"src/main.js": "main", "src/lib/util.js": "util", "src/node_modules/a": "", "node_modules/left/index.js": "left"})
	s.removeAll("node_modules")
	p.has(map[string]string{"src/main.js": "main", "node_modules/left/index.js": "left"})
	p.want = p.captured()
	s.rollback(id)
	p.same()
	s.unpin(p)
}
