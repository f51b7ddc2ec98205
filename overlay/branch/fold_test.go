//go:build linux

package branch_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// layers counts the layers in the store.
func (s *space) layers() (n int) {
	s.Helper()
	s.ok(s.store.View(func(tx *checkpoint.Tx) error {
		all, err := tx.Layers()
		n = len(all)
		return err
	}))
	return n
}

func TestLayersOfDroppedCheckpointsAreTakenOverByThoseAbove(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's", "gone": "", "dir/x": ""})
	s.fork("b", "")
	b := s.tree("b")
	b.unlink("gone")
	b.rename("dir", "moved")
	r := b.openFile("a", unix.O_RDONLY)
	defer r.Release()
	var ids []string
	for i := range 20 {
		b.write("a", fmt.Sprint("state ", i))
		b.write(fmt.Sprint("own ", i), "")
		if i > 0 {
			b.unlink(fmt.Sprint("own ", i-1))
		}
		ids = append(ids, s.snapshot("b"))
	}
	kept := s.at(ids[7])
	before, at := s.capture("b"), kept.read("a")
	for i, id := range ids {
		if i != 7 && i != 19 {
			s.ok(s.m.DropCheckpoint(context.Background(), id))
		}
	}
	_, err := s.m.GC(context.Background())
	s.ok(err)
	if n := s.layers(); n != 3 { // two checkpoints and what is live
		t.Errorf("%d layers are left, want 3", n)
	}
	if n := s.poolSize(); n > 8 { // of either checkpoint: the root, a, own and moved at most
		t.Errorf("%d inodes are left in the pool", n)
	}
	s.sound()
	if got := b.readFile(r); got != "state 19" {
		t.Errorf("a file that was open reads %q", got)
	}
	s.same(before, s.capture("b"))
	s.reopen()
	s.same(before, s.capture("b"))
	s.at(ids[7]).has("a", at)
	s.rollback("b", ids[7])
	b = s.tree("b")
	b.has("a", "state 7")
	b.lacks("gone")
	b.has("moved/x", "")
	s.sound()
}

func TestALayerStaysWhoseContentIsSeenThroughTheOneAbove(t *testing.T) {
	s := newSpace(t, map[string]string{"a": "main's"})
	s.fork("x", "")
	x := s.tree("x")
	x.write("a", "content below")
	first := s.snapshot("x")
	_, err := x.SetAttr(x.node("a"), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600})
	s.ok(err)
	s.snapshot("x")
	s.ok(s.m.DropCheckpoint(context.Background(), first))
	_, err = s.m.GC(context.Background())
	s.ok(err)
	s.reopen()
	x = s.tree("x")
	x.has("a", "content below")
	if a := x.attr("a"); a.Mode&0o777 != 0o600 {
		t.Errorf("the mode is %o", a.Mode&0o777)
	}
	s.sound()
}

func TestAFileThatIsOpenOutlivesTheLayerThatItWasIn(t *testing.T) {
	s := newSpace(t, nil)
	s.fork("x", "")
	x := s.tree("x")
	x.write("a", "content")
	first := s.snapshot("x")
	f := x.openFile("a", unix.O_RDWR)
	defer f.Release()
	x.unlink("a")
	s.snapshot("x")
	s.ok(s.m.DropCheckpoint(context.Background(), first))
	_, err := s.m.GC(context.Background())
	s.ok(err)
	if n := s.poolSize(); n != 1 { // the root
		t.Errorf("%d inodes are in the pool, want the root alone", n)
	}
	if a, err := x.GetAttr(f.Inode(), f); err != nil || a.Size != 7 || a.Nlink != 0 {
		t.Errorf("its attributes are %+v, %v", a, err)
	}
	if _, err := x.GetXattr(f.Inode(), "user.x", nil); err != unix.ENODATA {
		t.Errorf("an xattr gives %v", err)
	}
	if n, err := x.ListXattr(f.Inode(), nil); n != 0 || err != nil {
		t.Errorf("the xattrs are %d, %v", n, err)
	}
	x.writeFile(f, "CONTENT")
	if got := x.readFile(f); got != "CONTENT" {
		t.Errorf("it reads %q", got)
	}
}
