//go:build linux

package merge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/linemerge"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/merge"
	"golang.org/x/sys/unix"
)

// counted is a volume that counts what it is asked.
type counted struct {
	volume
	calls *int
}

func (c counted) Lookup(d overlay.Inode, name string) (overlay.Inode, overlay.Attr, error) {
	*c.calls++
	return c.volume.Lookup(d, name)
}

func (c counted) OpenDir(n overlay.Inode) (overlay.Dir, error) {
	*c.calls++
	return c.volume.OpenDir(n)
}

func (c counted) Open(n overlay.Inode, flags int, direct bool, by *overlay.Caller) (overlay.File, error) {
	*c.calls++
	return c.volume.Open(n, flags, direct, by)
}

func TestAPlanCostsWhatChanged(t *testing.T) {
	x := newTrees(t, func(w *workspace) {
		for i := range 40 {
			d := filepath.Join(w.dir, fmt.Sprint("d", i))
			w.check(os.Mkdir(d, 0o755))
			for j := range 50 {
				w.check(os.WriteFile(filepath.Join(d, fmt.Sprint("f", j)), []byte("x"), 0o644))
			}
		}
	})
	x.ours.write("d1/f1", "ours")
	x.theirs.write("d2/f2", "theirs")
	x.theirs.create("d3/n", "n")
	x.theirs.rename("d4", "D")
	calls := 0
	p, err := merge.Make(context.Background(), merge.Input{
		Base:   counted{x.base.volume(), &calls},
		Ours:   merge.Side{Volume: counted{x.ours.volume(), &calls}, Changes: x.ours.diff()},
		Theirs: merge.Side{Volume: counted{x.theirs.volume(), &calls}, Changes: x.theirs.diff()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if len(p.Ops) != 3 || !p.Clean() {
		t.Errorf("the plan is %s", text(p))
	}
	if calls > 100 {
		t.Errorf("it took %d calls for four changes in 2,000 files", calls)
	}
}

func TestADiffThatLeavesANameOutIsRefused(t *testing.T) {
	x := newTrees(t, fill)
	x.theirs.create("d/n", "n\n")
	x.theirs.rm("d/g")
	x.theirs.rename("e", "E")
	x.theirs.mkdir("m")
	x.theirs.create("m/n", "n\n")
	all := x.theirs.diff()
	for i, c := range all {
		changes := append(append([]overlay.Change{}, all[:i]...), all[i+1:]...)
		for _, swapped := range []bool{false, true} {
			one, two := merge.Side{Volume: x.ours.volume()}, merge.Side{Volume: x.theirs.volume(), Changes: changes}
			if swapped {
				one, two = two, one
			}
			p, err := merge.Make(context.Background(), merge.Input{Base: x.base.volume(), Ours: one, Theirs: two})
			if !errors.Is(err, &errs.Error{Code: errs.Integrity}) {
				t.Errorf("without %s %s: %v, %s", c.Kind, c.Path, err, text(p))
			}
		}
	}
}

func TestConflictsOfTextsNameTheLines(t *testing.T) {
	x := newTrees(t, fill)
	x.ours.write("a", "0\n"+edited("2", "two"))
	x.theirs.write("a", edited("2", "zwei\nzwei"))
	p := x.plan(t, merge.Text)
	want := linemerge.Conflict{Base: linemerge.Lines{First: 2, Count: 1}, Ours: linemerge.Lines{First: 3, Count: 1}, Theirs: linemerge.Lines{First: 2, Count: 2}}
	if len(p.Conflicts) != 1 || len(p.Conflicts[0].Lines) != 1 || p.Conflicts[0].Lines[0] != want {
		t.Errorf("got %s", text(p))
	}
}

func TestAPlanIsJSON(t *testing.T) {
	x := newTrees(t, fill)
	x.ours.write("a", edited("2", "two"))
	x.theirs.write("a", edited("6", "six"))
	x.theirs.mkdir("n")
	x.theirs.symlink("a", "n/l")
	x.theirs.rename("d/f", "n/f")
	x.theirs.rm("bin")
	var got struct {
		Ops []struct {
			Do, Path, From, Type, Source, Target string
			Attrs                                map[string]any
		}
		Merged []string
	}
	if err := json.Unmarshal([]byte(text(x.plan(t, merge.Text))), &got); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, o := range got.Ops {
		list = append(list, strings.TrimSpace(fmt.Sprintln(o.Do, o.Path, o.From, o.Type, o.Source, o.Target)))
	}
	want := "remove bin  file\nmkdir n  dir\nrename n/f d/f file\nput a  file merge\nput n/l n/l symlink theirs a\nsetattr n  dir"
	if strings.Join(list, "\n") != want || len(got.Merged) != 1 || got.Merged[0] != "a" {
		t.Errorf("got %q, merged %q", list, got.Merged)
	}
}

func TestLargeFilesAreNotMergedAsText(t *testing.T) {
	x := newTrees(t, fill)
	x.ours.write("a", edited("2", "two"))
	x.theirs.write("a", edited("6", "six"))
	in := merge.Input{
		Base: x.base.volume(), Policy: merge.Text, MaxText: int64(len(lines)),
		Ours:   merge.Side{Volume: x.ours.volume(), Changes: x.ours.diff()},
		Theirs: merge.Side{Volume: x.theirs.volume(), Changes: x.theirs.diff()},
	}
	for _, limit := range []int64{int64(len(lines)), int64(len(lines)) + 2} {
		in.MaxText = limit
		p, err := merge.Make(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		if p.Clean() != (limit > int64(len(lines))) {
			t.Errorf("limit %d: clean is %v", limit, p.Clean())
		}
		_ = p.Close()
	}
	in.Policy = "guess"
	if _, err := merge.Make(context.Background(), in); !errors.Is(err, &errs.Error{Code: errs.Usage}) {
		t.Errorf("an unknown policy gives %v", err)
	}
}

func TestTheNewerMtimeWins(t *testing.T) {
	for _, tt := range []struct{ ours, theirs, want int64 }{{5e9, 7e9, 7e9}, {7e9, 5e9, 7e9}, {0, 5e8, 5e8}, {5e8, 0, 5e8}, {2e9, 2e9, 2e9}} {
		x := newTrees(t, fill)
		if tt.ours != 0 {
			x.ours.touch("a", tt.ours)
		}
		if tt.theirs != 0 {
			x.theirs.touch("a", tt.theirs)
		}
		p := x.plan(t, merge.Reject)
		x.apply(t, p)
		if got := x.ours.state()["a"].Mtime; got != tt.want || !p.Clean() {
			t.Errorf("ours %d, theirs %d: it is %d, %d conflicts", tt.ours, tt.theirs, got, len(p.Conflicts))
		}
	}
}

func TestMergeKeepsHoles(t *testing.T) {
	x := newTrees(t, fill)
	x.theirs.create("n", "start")
	x.theirs.node("n", func(v volume, n overlay.Inode) error {
		f, err := v.Open(n, unix.O_WRONLY, false, caller)
		if err != nil {
			return err
		}
		defer f.Release()
		if _, err := f.WriteAt([]byte("middle"), 8<<20); err != nil {
			return err
		}
		_, err = v.SetAttr(n, f, &overlay.SetAttr{Valid: overlay.SetSize, Size: 16<<20 + 1})
		return err
	})
	p := x.plan(t, merge.Reject)
	x.apply(t, p)
	want, got := x.theirs.state()["n"], x.ours.state()["n"]
	if got.Sum != want.Sum || got.Size != want.Size {
		t.Error("the content differs")
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(x.ours.dir, "n"), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes are allocated (%v)", st.Blocks*512, err)
	}
}

func TestTheMergeOfACancelledCallEnds(t *testing.T) {
	x := newTrees(t, fill)
	x.theirs.rm("a")
	p := x.plan(t, merge.Reject)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := merge.Apply(ctx, p, x.ours.volume(), x.theirs.volume()); !errors.Is(err, context.Canceled) {
		t.Errorf("Apply gives %v", err)
	}
	_, err := merge.Make(ctx, merge.Input{Base: x.base.volume(), Ours: merge.Side{Volume: x.ours.volume()}, Theirs: merge.Side{Volume: x.theirs.volume(), Changes: x.theirs.diff()}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Make gives %v", err)
	}
}
