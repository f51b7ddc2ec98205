//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Somebody writes one file after the other, each as a whole, again and again. At any instant no file is older than one that comes after it, and none is more than one turn behind.
func TestPatchOfNowShowsOneInstantWhileFilesAreWritten(t *testing.T) {
	const files, lines = 24, 400
	name := func(i int) string { return fmt.Sprintf("f%02d", i) }
	text := func(turn int) string { return strings.Repeat(fmt.Sprintf("%08d\n", turn), lines) }
	s := newSpace(t, nil)
	for i := range files {
		s.write(name(i), text(0))
	}
	old := filepath.Join(t.TempDir(), "old")
	id := s.snapshot()
	var stop atomic.Bool
	var turns atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for turn := 1; !stop.Load(); turn++ {
			for i := range files {
				s.overwrite(name(i), text(turn), 0)
			}
			turns.Store(int64(turn))
		}
	})
	defer wg.Wait()
	defer stop.Store(true)
	for range 15 {
		for before := turns.Load(); turns.Load() == before; {
			if t.Failed() {
				return
			}
		}
		var patch bytes.Buffer
		s.ok(s.w.Patch(context.Background(), id, "", &patch))
		s.ok(os.Mkdir(old, 0o755))
		for i := range files {
			s.ok(os.WriteFile(filepath.Join(old, name(i)), []byte(text(0)), 0o644))
		}
		cmd := exec.Command("git", "apply")
		cmd.Dir, cmd.Stdin = old, &patch
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git apply: %v: %s", err, out)
		}
		var first, last int
		for i := range files {
			b, err := os.ReadFile(filepath.Join(old, name(i)))
			s.ok(err)
			var turn int
			_, err = fmt.Sscanf(string(b), "%d", &turn)
			s.ok(err)
			if string(b) != text(turn) {
				t.Fatalf("%s is torn", name(i))
			}
			if i == 0 {
				first, last = turn, turn
			}
			if turn > last || turn < first-1 {
				t.Fatalf("%s is of turn %d, one before it of turn %d, and the first of turn %d", name(i), turn, last, first)
			}
			last = turn
		}
		s.ok(os.RemoveAll(old))
	}
}

// A name moves from one directory to the other and back. It is in one of them at any instant.
func TestDiffOfNowShowsOneInstantWhileNamesMove(t *testing.T) {
	s := newSpace(t, nil)
	s.mkdir("a")
	s.mkdir("b")
	s.write("a/before", "x")
	id := s.snapshot()
	s.rename("a/before", "a/x", 0)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			s.rename("a/x", "b/x", 0)
			s.rename("b/x", "a/x", 0)
		}
	})
	defer wg.Wait()
	defer stop.Store(true)
	for range 150 {
		d, err := s.w.Diff(context.Background(), id, "", true)
		s.ok(err)
		if len(d.Changes) != 1 || d.Changes[0].Kind != "renamed" || d.Changes[0].OldPath != "a/before" {
			t.Fatalf("the diff is %+v", d.Changes)
		}
	}
}

func TestPatchRefusesWhatWasChangedWhileNobodyWatched(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("and changed again %v", again), func(t *testing.T) {
			s := newSpace(t, fillSmall)
			id := s.snapshot()
			s.ok(s.w.Close())
			s.ok(os.WriteFile(filepath.Join(s.dir, "b.txt"), []byte("outside"), 0o644))
			s.open()
			if again {
				s.unlink("b.txt")
			}
			d, err := s.w.Diff(context.Background(), id, "", false)
			s.ok(err)
			if len(d.Changes) != 1 || d.Changes[0].Path != "b.txt" {
				t.Errorf("the diff is %+v", d.Changes)
			}
			err = s.w.Patch(context.Background(), id, "", &bytes.Buffer{})
			wantCode(t, err, errs.Integrity)
			if err == nil || !strings.Contains(err.Error(), "b.txt") {
				t.Errorf("the error does not name it: %v", err)
			}
			later := s.snapshot()
			s.write("later", "l")
			s.ok(s.w.Patch(context.Background(), later, "", &bytes.Buffer{}))
		})
	}
}

func TestDiffAndPatchTellOfAllNamesOfAFile(t *testing.T) {
	s := newSpace(t, nil)
	s.mkdir("d")
	s.write("f", "one\n")
	s.link("f", "d/g")
	s.link("f", "gone")
	id := s.snapshot()
	s.reopen() // so that the other names are not in memory
	s.overwrite("gone", "two\n", 0)
	s.unlink("gone")
	d, err := s.w.Diff(context.Background(), id, "", false)
	s.ok(err)
	var got []string
	for _, c := range d.Changes {
		got = append(got, fmt.Sprint(c.Kind, " ", c.Path, " ", c.What))
	}
	if want := "[modified d/g [content mtime] modified f [content mtime] deleted gone []]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	var patch bytes.Buffer
	s.ok(s.w.Patch(context.Background(), id, "", &patch))
	for _, part := range []string{"+++ b/d/g\n", "+++ b/f\n", "--- a/gone\n"} {
		if !strings.Contains(patch.String(), part) {
			t.Errorf("the patch has no %q", part)
		}
	}
}

// A diff of what is live leaves nothing behind that the store would grow by.
func TestDiffsOfALiveTreeLeaveNothingBehind(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	for i := range 40 {
		s.overwrite("b.txt", fmt.Sprintf("%04d", i), 0)
		_, err := s.w.Diff(context.Background(), id, "", false)
		s.ok(err)
	}
	if _, err := s.w.GC(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d := s.w.Diagnostics(); d.Backups > 1 {
		t.Errorf("there are %d preimages of one file", d.Backups)
	}
	s.rollback(id)
	if got, err := os.ReadFile(filepath.Join(s.dir, "b.txt")); err != nil || strings.HasPrefix(string(got), "00") {
		t.Errorf("it holds %q, %v", got, err)
	}
	s.ok(s.w.Drop(context.Background(), id))
}

func TestDiffOfWhatIsUnchangedIsEmptyUntilSomethingChanges(t *testing.T) {
	s := newSpace(t, fillSmall)
	h, err := s.tr.Open(s.at("b.txt"), unix.O_RDWR, true, nil) // what is written to it is not seen
	s.ok(err)
	defer h.Release()
	diff := func() []overlay.Change {
		t.Helper()
		d, err := s.w.Diff(context.Background(), "", "", false)
		s.ok(err)
		return d.Changes
	}
	s.snapshot()
	if got := diff(); got == nil || len(got) != 0 {
		t.Errorf("after the checkpoint there is %+v", got)
	}
	if h.Direct() {
		_, err = unix.Pwrite(h.Fd(), []byte("changed"), 0)
	} else {
		_, err = h.WriteAt([]byte("changed"), 0)
	}
	s.ok(err)
	if got := diff(); len(got) != 1 || got[0].Path != "b.txt" {
		t.Errorf("after a write there is %+v", got)
	}
	s.snapshot()
	if got := diff(); len(got) != 0 {
		t.Errorf("after another checkpoint there is %+v", got)
	}
	s.write("new", "n")
	if got := diff(); len(got) != 1 || got[0].Path != "new" {
		t.Errorf("after a file was made there is %+v", got)
	}
}
