//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/treefs"
	"golang.org/x/sys/unix"
)

// pinned is a state that somebody has pinned, with what it was like then.
type pinned struct {
	*space
	pin   checkpoint.Pin
	state overlay.State
	want  treestate.State
}

// pinNow pins the live state, and opens it.
func (s *space) pinNow() *pinned {
	s.Helper()
	id := s.snapshot()
	p := &pinned{space: s, want: s.seen()}
	p.pin.Owner = id
	s.ok(s.w.Pin(id, id, func(_ *checkpoint.Tx, c checkpoint.Checkpoint) error { p.pin.Epoch = c.Epoch; return nil }))
	p.open()
	s.ok(s.w.Drop(context.Background(), id)) // it is not what keeps the state
	return p
}

// seen is what the tree shows now.
func (s *space) seen() treestate.State {
	s.Helper()
	st, err := treefs.New(s.tr, treefs.Options{}).Capture()
	s.ok(err)
	return st
}

func (p *pinned) open() {
	p.Helper()
	st, err := p.w.OpenState(p.pin.Epoch)
	p.ok(err)
	p.state = st
	p.Cleanup(st.Close)
}

// same proves that the state is what it was.
func (p *pinned) same() {
	p.Helper()
	got, err := treefs.CaptureState(p.state)
	p.ok(err)
	for _, d := range (treestate.Compare{Nlink: true}).Diff(p.want, got) {
		p.Error(d)
	}
}

// id walks to an inode of the state.
func (p *pinned) id(path string) checkpoint.ID {
	p.Helper()
	id := p.state.Root()
	for _, name := range split(path) {
		e, err := p.state.Lookup(id, name)
		if err != nil {
			p.Fatalf("look up %s: %v", path, err)
		}
		id = e.ID
	}
	return id
}

// sound proves that the store has what it promises.
func (s *space) sound() {
	s.Helper()
	problems, err := s.w.Fsck(context.Background(), true)
	s.ok(err)
	for _, p := range problems {
		s.Errorf("fsck: %s: %s", p.Where, p.What)
	}
}

func TestPinnedStateStaysWhatItWas(t *testing.T) {
	for lower, prepare := range lowers {
		t.Run(lower, func(t *testing.T) {
			next := prepare(t)
			for name, change := range changes {
				if reason := cannot[lower][name]; reason != "" {
					t.Logf("%s: %s", name, reason)
					continue
				}
				t.Run(name, func(t *testing.T) { pinAndChange(t, spaceAt(t, next()), change) })
			}
		})
	}
}

// pinAndChange goes through what may happen to a workspace after it was pinned.
func pinAndChange(t *testing.T, s *space, change func(*space)) {
	p := s.pinNow()
	p.same()
	first := s.snapshot()
	change(s)
	p.same()
	_, err := s.w.GC(context.Background())
	s.ok(err)
	p.same()
	second := s.snapshot()
	q := &pinned{space: s, want: s.seen(), pin: checkpoint.Pin{Owner: "second"}}
	s.ok(s.w.Pin(second, "second", func(_ *checkpoint.Tx, c checkpoint.Checkpoint) error { q.pin.Epoch = c.Epoch; return nil }))
	q.open()
	q.same()
	s.rollback(first)
	p.same()
	q.same()
	s.undo()
	p.same()
	q.same()
	_, err = s.w.Rollback(context.Background(), first, overlay.RollbackOptions{Discard: true})
	s.ok(err)
	s.ok(s.w.Drop(context.Background(), first))
	s.ok(s.w.Drop(context.Background(), second))
	_, err = s.w.GC(context.Background())
	s.ok(err)
	p.same()
	q.same()
	p.state.Close()
	q.state.Close()
	s.reopen()
	s.sound()
	for _, x := range []*pinned{q, p} {
		x.open()
		x.same()
		x.state.Close()
	}
	s.ok(s.w.Unpin(p.pin, func(*checkpoint.Tx) error { return nil }))
	_, err = s.w.GC(context.Background())
	s.ok(err)
	q.open()
	q.same()
	q.state.Close()
	s.ok(s.w.Unpin(q.pin, func(*checkpoint.Tx) error { return nil }))
	_, err = s.w.GC(context.Background())
	s.ok(err)
	s.sound()
	if d := s.w.Diagnostics(); d.TrashFiles+d.Backups != 0 {
		t.Errorf("%d old inodes and %d preimages are left when nothing needs them", d.TrashFiles, d.Backups)
	}
	if _, err := s.w.OpenState(p.pin.Epoch); err == nil {
		t.Error("a state was opened that nobody has kept")
	}
}

func TestIdentityOfAStateHoldsOverARestart(t *testing.T) {
	s := newSpace(t, fillSmall)
	p := s.pinNow()
	ids := map[string]checkpoint.ID{}
	for path := range p.want {
		if path != "." {
			ids[path] = p.id(path)
		}
	}
	s.rename("dir/sub", "elsewhere", 0)
	s.overwrite("elsewhere/d.txt", "XX", 0)
	p.state.Close()
	s.reopen()
	p.open() // nothing was looked up in it
	for path, id := range ids {
		e, err := treefs.CaptureInode(p.state, id, path)
		s.ok(err)
		want := p.want[path]
		want.First = ""
		for _, d := range (treestate.Compare{Nlink: true}).Diff(treestate.State{path: want}, treestate.State{path: e}) {
			t.Error(d)
		}
	}
}

func TestOpenFileOfAStateStaysExact(t *testing.T) {
	const size = 200 << 10
	old := func() []byte { return bytes.Repeat([]byte("0123456789abcdef"), size/16) }()
	later := map[string]func(s *space){
		"write":               func(s *space) { s.overwrite("f", "XXXX", 70000) },
		"grow":                func(s *space) { s.overwrite("f", "XXXX", size+5) },
		"empty":               func(s *space) { s.write("f", "") },
		"write again, deeper": func(s *space) { s.overwrite("f", "YY", 5); s.overwrite("f", "ZZ", size-7) },
		"cut": func(s *space) {
			_, err := s.tr.SetAttr(s.at("f"), nil, &overlay.SetAttr{Valid: overlay.SetSize, Size: 4000})
			s.ok(err)
		},
		"punch": func(s *space) {
			h, err := s.tr.Open(s.at("f"), unix.O_RDWR, false, nil)
			s.ok(err)
			defer h.Release()
			s.ok(h.Fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8192, 65536))
		},
		"replace": func(s *space) { s.write("g", "new"); s.rename("g", "f", 0) },
		"remove":  func(s *space) { s.unlink("f") },
	}
	xfs := testfs.XFS(t, 512<<20)
	lowers := []struct{ name, base, tier string }{
		{"the temporary directory", t.TempDir(), "auto"}, {"tmpfs", ramDir(t), "auto"}, {"XFS", xfs, "auto"}, {"XFS", xfs, "pure-manifest"},
	}
	for _, largeMin := range []int64{1, 1 << 30} {
		for _, lower := range lowers {
			for name, change := range later {
				t.Run(fmt.Sprintf("%s on %s, large from %d, %s", name, lower.name, largeMin, lower.tier), func(t *testing.T) {
					dir, err := os.MkdirTemp(lower.base, "space-")
					if err != nil {
						t.Fatal(err)
					}
					s := spaceWith(t, overlay.Config{Workspace: dir, LargeMin: largeMin, Tier: lower.tier})
					s.write("f", string(old))
					keepsContent(s, old, change)
				})
			}
		}
	}
}

// keepsContent changes the file f in ways that a state must not show.
func keepsContent(s *space, old []byte, change func(*space)) {
	s.Helper()
	id := s.snapshot()
	p := s.pinNow()
	f, err := p.state.Open(p.id("f"))
	s.ok(err)
	defer f.Close()
	check := func(when string) {
		s.Helper()
		got := make([]byte, len(old)+10)
		if n, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got[:n], old) {
			s.Errorf("%s: %d bytes are read that are not the old ones (%v)", when, n, err)
		}
		copied, err := os.CreateTemp(filepath.Dir(s.dir), "copy-") // on the same filesystem, which may clone it
		s.ok(err)
		defer copied.Close()
		s.ok(f.CloneTo(int(copied.Fd())))
		if b, err := os.ReadFile(copied.Name()); err != nil || !bytes.Equal(b, old) {
			s.Errorf("%s: %d bytes are copied that are not the old ones (%v)", when, len(b), err)
		}
		fresh, err := p.state.Open(p.id("f"))
		s.ok(err)
		defer fresh.Close()
		if n, err := fresh.ReadAt(got, 0); err != nil || !bytes.Equal(got[:n], old) {
			s.Errorf("%s: %d bytes are read of a file opened later that are not the old ones (%v)", when, n, err)
		}
	}
	check("at first")
	change(s)
	check("after the change")
	s.snapshot()
	if _, _, err := s.tr.Lookup(s.tr.Root(), "f"); err == nil {
		s.overwrite("f", "QQQQ", 100)
	}
	check("after a later change")
	s.rollback(id)
	check("after a rollback")
	s.undo()
	check("after the undo")
	list, err := s.w.List(overlay.ListOptions{})
	s.ok(err)
	for _, c := range list {
		s.ok(s.w.Drop(context.Background(), c.ID))
	}
	_, err = s.w.GC(context.Background())
	s.ok(err)
	check("when all checkpoints are gone")
	s.sound()
}
