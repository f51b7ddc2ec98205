//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

func TestAnyRetainedCheckpointCanBeReachedInAnyOrder(t *testing.T) {
	s := newSpace(t, fillSmall)
	var ids []string
	var states []treestate.State
	take := func() {
		ids = append(ids, s.snapshot())
		states = append(states, s.state())
	}
	take()
	s.overwrite("b.txt", "1", 0)
	s.mkdir("n")
	s.write("n/f", "f")
	take()
	s.rename("dir", "n/dir", 0)
	s.unlink("n/dir/sub/d.txt")
	take()
	s.rename("n", "m", 0)
	s.overwrite("m/dir/c.txt", "33", 0)
	s.link("m/f", "m/f2")
	take()
	for _, k := range []int{3, 1, 2, 0, 3, 0, 2, 1, 1, 3} {
		s.rollback(ids[k])
		s.same(states[k])
	}
	s.ok(s.w.Drop(context.Background(), ids[1]))
	s.ok(s.w.Drop(context.Background(), ids[2]))
	for _, k := range []int{0, 3, 0, 3} {
		s.rollback(ids[k])
		s.same(states[k])
	}
	s.reopen()
	for _, k := range []int{3, 0} {
		s.rollback(ids[k])
		s.same(states[k])
	}
}

func TestNewDirectoryCostsOneRecord(t *testing.T) {
	s := newSpace(t, fillSmall)
	s.snapshot()
	s.mkdir("node_modules")
	for i := range 100 {
		s.mkdir(fmt.Sprintf("node_modules/p%d", i))
		s.write(fmt.Sprintf("node_modules/p%d/index.js", i), "x")
		s.rename(fmt.Sprintf("node_modules/p%d/index.js", i), fmt.Sprintf("node_modules/p%d/main.js", i), 0)
	}
	if st := s.w.Status(); st.Slots != 1 || st.Inodes != 1 {
		t.Errorf("there are %d slot records and %d of inodes, want one of each", st.Slots, st.Inodes)
	}
}

func TestMovingADirectoryCostsTwoSlots(t *testing.T) {
	s := newSpace(t, func(dir string) {
		_ = os.MkdirAll(dir+"/big", 0o755)
		for i := range 1000 {
			_ = os.WriteFile(fmt.Sprintf("%s/big/%d", dir, i), nil, 0o644)
		}
	})
	before := s.state()
	id := s.snapshot()
	s.rename("big", "large", 0)
	if st := s.w.Status(); st.Slots != 2 {
		t.Errorf("there are %d slot records, want 2", st.Slots)
	}
	if r := s.rollback(id); r.Restored != 1 || r.Removed != 1 {
		t.Errorf("the rollback restored %d names and removed %d, want one each", r.Restored, r.Removed)
	}
	s.same(before)
}

func TestRoundsDoNotGrowTheStore(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	var after10 [2]int
	for round := range 60 {
		s.overwrite("b.txt", fmt.Sprint(round), 0)
		s.write("dir/c.txt", fmt.Sprint(round))
		s.unlink("dir/sub/d.txt")
		s.mkdir("n")
		s.write("n/f", "f")
		s.rollback(id)
		if _, err := s.w.GC(context.Background()); err != nil {
			t.Fatal(err)
		}
		d := s.w.Diagnostics()
		if size := [2]int{d.TrashFiles, d.Backups}; round == 10 {
			after10 = size
		} else if round > 10 && size != after10 {
			t.Fatalf("in round %d there are %v old inodes and preimages, in round 10 %v", round, size, after10)
		}
	}
	all, err := s.w.List(overlay.ListOptions{})
	if err != nil || len(all) != 2 {
		t.Errorf("there are %d active checkpoints, want 2 (%v)", len(all), err)
	}
}

func TestPromoteAndDropFreeEverything(t *testing.T) {
	s := newSpace(t, fillSmall)
	a, b := s.snapshot(), ""
	s.overwrite("b.txt", "1", 0)
	s.unlink("dir/sub/d.txt")
	b = s.snapshot()
	s.overwrite("b.txt", "2", 0)
	state := s.state()
	if c, err := s.w.Promote(context.Background(), a, nil); err != nil || c.Status != "promoted" {
		t.Fatal(c, err)
	}
	s.ok(s.w.Drop(context.Background(), b))
	if _, err := s.w.GC(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.same(state)
	if d := s.w.Diagnostics(); d.TrashFiles+d.Backups != 0 {
		t.Errorf("%d old inodes and %d preimages are left in the store", d.TrashFiles, d.Backups)
	}
}

// failing is a writer that takes nothing.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestAPromotionWhosePatchFailsChangesNothing(t *testing.T) {
	s := newSpace(t, fillSmall)
	before := s.state()
	id := s.snapshot()
	s.overwrite("b.txt", "1", 0)
	s.unlink("a.txt")
	after := s.state()
	full := errors.New("no room for it")
	if _, err := s.w.Promote(context.Background(), id, failing{full}); !errors.Is(err, full) {
		t.Fatalf("a patch that can't be written gives %v", err)
	}
	s.same(after)
	if c, err := s.w.Get(id); err != nil || c.Status != checkpoint.Active {
		t.Errorf("the checkpoint is %s, %v", c.Status, err)
	}
	s.rollback(id)
	s.same(before)
}

func TestPatchAppliesToTheOldTree(t *testing.T) {
	s := newSpace(t, fillSmall)
	old := filepath.Join(t.TempDir(), "old")
	if out, err := exec.Command("cp", "-a", s.dir, old).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.ok(os.RemoveAll(filepath.Join(old, overlay.StoreName)))
	id := s.snapshot()
	s.rename("dir", "moved", 0)
	s.overwrite("moved/c.txt", "XYZ\nnew", 0)
	s.write("bin", "a\x00b")
	s.unlink("b.txt")
	s.mkdir("n")
	s.write("n/new", "one\ntwo\n")
	_, err := s.tr.SetAttr(s.at("moved/sub/e.txt"), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o755})
	s.ok(err)
	var patch bytes.Buffer
	s.ok(s.w.Patch(context.Background(), id, "", &patch))
	cmd := exec.Command("git", "apply", "-p1")
	cmd.Dir, cmd.Stdin = old, &patch
	text := patch.String()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v: %s\n%s", err, out, text)
	}
	out, err := exec.Command("diff", "-r", "--no-dereference", "-x", overlay.StoreName, s.dir, old).CombinedOutput()
	if err != nil {
		t.Errorf("%s", out)
	}
}

func TestReconcileNamesWhatChanged(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	s.rename("dir/c.txt", "c2.txt", 0)
	s.overwrite("b.txt", "X", 0)
	s.unlink("dir/sub/d.txt")
	s.mkdir("n")
	s.write("n/f", "f")
	s.rename("dir/sub/e.txt", "n/e.txt", 0)
	s.write("plain", "p")
	r, err := s.w.Reconcile(context.Background(), id)
	s.ok(err)
	got := fmt.Sprint(r.Created, r.Modified, r.Deleted, r.Renamed)
	want := "[n/ plain] [b.txt] [dir/sub/d.txt] [{dir/c.txt c2.txt} {dir/sub/e.txt n/e.txt}]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestWritesThroughOldHandlesAreProtected(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			s := newSpace(t, fillSmall)
			h, err := s.tr.Open(s.at("b.txt"), unix.O_RDWR, direct, nil)
			s.ok(err)
			defer h.Release()
			write := func(text string) {
				if h.Direct() {
					_, err := unix.Pwrite(h.Fd(), []byte(text), 0)
					s.ok(err)
				} else {
					_, err := h.WriteAt([]byte(text), 0)
					s.ok(err)
				}
			}
			write("before")
			id := s.snapshot()
			before := s.state()
			write("after!")
			s.rollback(id)
			s.same(before)
			write("again!")
			s.rollback(id)
			s.same(before)
		})
	}
}

func TestContentSurvivesJumpsBackAndForth(t *testing.T) {
	for _, discard := range []bool{false, true} {
		s := newSpace(t, fillSmall)
		s.write("b.txt", "rewritten")
		one, stateOne := s.snapshot(), s.state()
		s.overwrite("b.txt", "0123456789abcdef", 3)
		two, stateTwo := s.snapshot(), s.state()
		s.unlink("b.txt")
		_, err := s.w.Rollback(context.Background(), two, overlay.RollbackOptions{Discard: discard})
		s.ok(err)
		s.same(stateTwo)
		s.rollback(one)
		s.same(stateOne)
		s.rollback(two)
		s.same(stateTwo)
		s.rollback(one)
		s.same(stateOne)
	}
}

func TestHardLinksStayLinkedOverJumps(t *testing.T) {
	s := newSpace(t, fillSmall)
	s.link("b.txt", "b2")
	one, stateOne := s.snapshot(), s.state()
	s.overwrite("b2", "XYZ", 1)
	s.unlink("b.txt")
	two, stateTwo := s.snapshot(), s.state()
	s.write("b2", "again")
	for _, to := range []string{two, one, two, one, one, two} {
		s.rollback(to)
		if to == one {
			s.same(stateOne)
		} else {
			s.same(stateTwo)
		}
	}
}

func TestWhatMovedWhileThereWasNoCheckpointIsFound(t *testing.T) {
	s := newSpace(t, fillSmall)
	first := s.snapshot()
	s.overwrite("dir/sub/d.txt", "X", 0)
	s.ok(s.w.Drop(context.Background(), first))
	s.rename("dir", "moved", 0)
	second, before := s.snapshot(), s.state()
	s.unlink("moved/sub/d.txt")
	s.reopen() // nothing is known from memory
	s.rollback(second)
	s.same(before)
}

func TestANameInANewDirectoryDoesNotCountAfterIt(t *testing.T) {
	for name, give := range map[string]func(s *space){
		"rename":   func(s *space) { s.rename("b.txt", "new/x", 0) },
		"link":     func(s *space) { s.link("b.txt", "new/x"); s.unlink("b.txt") },
		"exchange": func(s *space) { s.write("new/x", "x"); s.rename("b.txt", "new/x", unix.RENAME_EXCHANGE) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, fillSmall)
			s.link("b.txt", "dir/b2")
			first, before := s.snapshot(), s.state()
			s.mkdir("new")
			give(s)
			s.rename("dir/b2", "moved", 0)
			s.reopen() // nothing is known from memory
			s.rollback(first)
			s.same(before)
			a, err := s.tr.GetAttr(s.at("b.txt"), nil)
			s.ok(err)
			if a.Nlink != 2 {
				t.Errorf("it has %d names, want 2", a.Nlink)
			}
		})
	}
}

// A file with two names may change by one of them, while the other becomes another file.
func TestDiffTellsOfAFileOfWhichOneNameWasReplaced(t *testing.T) {
	s := newSpace(t, fillSmall)
	s.snapshot()
	s.write("temp", "another")
	s.rename("temp", "a.txt", 0)
	s.overwrite("dir/hard", "CHANGED", 0)
	d, err := s.w.Diff(context.Background(), "", "", false)
	s.ok(err)
	var got []string
	for _, c := range d.Changes {
		if c.Kind != overlay.Modified || !slices.Contains(c.What, "content") {
			continue
		}
		got = append(got, c.Path)
	}
	if want := []string{"a.txt", "dir/hard"}; !slices.Equal(got, want) {
		t.Errorf("Diff tells of %q, want %q", got, want)
	}
}
