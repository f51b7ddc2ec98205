//go:build linux

package branch_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"github.com/hyperfs/hyperfs/test/dirstate"
	"github.com/hyperfs/hyperfs/test/treefs"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"
)

// mainEpoch is that of main's only checkpoint, which is called mainPoint.
const (
	mainEpoch = 7
	mainPoint = "ckpt_main"
)

// space is the branches of a directory, which is what main was.
type space struct {
	testing.TB
	main, dir string
	state     *dirstate.Dir
	store     *checkpoint.Store
	m         *branch.Manager
	nums      atomic.Uint64
	idle      time.Duration
	refuse    error // of Pin, after what it was given has run
}

// newSpace makes main of files: their content by path. Directories come by themselves.
func newSpace(t testing.TB, files map[string]string) *space {
	dir := t.TempDir()
	s := &space{TB: t, main: filepath.Join(dir, "main"), dir: filepath.Join(dir, "store"), idle: time.Hour}
	s.ok(os.Mkdir(s.main, 0o755))
	for path, content := range files {
		path = filepath.Join(s.main, path)
		s.ok(os.MkdirAll(filepath.Dir(path), 0o755))
		s.ok(os.WriteFile(path, []byte(content), 0o644))
	}
	s.open()
	t.Cleanup(s.close)
	return s
}

func (s *space) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *space) open() {
	s.Helper()
	var err error
	s.state, err = dirstate.Open(s.main)
	s.ok(err)
	s.ok(os.MkdirAll(filepath.Join(s.dir, "branches"), 0o700))
	s.store, err = checkpoint.Open(s.dir, checkpoint.Options{})
	s.ok(err)
	dir, err := os.Open(filepath.Join(s.dir, "branches"))
	s.ok(err)
	defer dir.Close()
	s.m, err = branch.New(s.config(dir))
	s.ok(err)
}

func (s *space) config(dir *os.File) branch.Config {
	only := checkpoint.Checkpoint{ID: mainPoint, Epoch: mainEpoch, Status: checkpoint.Active, Agent: "of main"}
	find := func(id string) (checkpoint.Checkpoint, error) {
		if id != "" && id != mainPoint {
			return only, errs.New(errs.NotFound, "find checkpoint", id, "there is no such checkpoint")
		}
		return only, nil
	}
	return branch.Config{
		Store: s.store, Dir: dir, State: s.state.State, Checkpoint: find, Idle: s.idle,
		Pin: func(id string, fn func(*checkpoint.Tx, checkpoint.Checkpoint) error) error {
			if _, err := find(id); err != nil {
				return err
			}
			return s.store.Update(func(tx *checkpoint.Tx) error { return errors.Join(fn(tx, only), s.refuse) })
		},
		NewNum:  func() uint64 { return s.nums.Add(1) },
		Reserve: func() string { return "ckpt_" + ulid.Make().String() },
	}
}

func (s *space) close() {
	if s.m == nil {
		return
	}
	if err := errors.Join(s.m.Close(), s.store.Close()); err != nil {
		s.Error(err)
	}
	if n := s.state.Users(); n != 0 {
		s.Errorf("%d users of main's state are left", n)
	}
	s.m = nil
}

func (s *space) reopen() {
	s.Helper()
	s.close()
	s.open()
}

func (s *space) fork(name, from string) {
	s.Helper()
	_, err := s.m.Fork(context.Background(), name, from, branch.ForkOptions{})
	s.ok(err)
}

func (s *space) snapshot(name string) string {
	s.Helper()
	c, err := s.m.Snapshot(context.Background(), name, overlay.SnapshotOptions{})
	s.ok(err)
	return c.ID
}

func (s *space) rollback(name, id string) {
	s.Helper()
	_, err := s.m.Rollback(context.Background(), name, id, overlay.RollbackOptions{})
	s.ok(err)
}

// sound has everything checked that must hold.
func (s *space) sound() {
	s.Helper()
	problems, err := s.m.Fsck(context.Background())
	s.ok(err)
	for _, p := range problems {
		s.Errorf("fsck: %s: %s", p.Where, p.What)
	}
}

// tree is a volume that is in use until the test ends.
type tree struct {
	*space
	overlay.Volume
}

func (s *space) tree(name string) tree {
	s.Helper()
	v, err := s.m.Volume(name)
	s.ok(err)
	return tree{s, v}
}

func (s *space) at(id string) tree {
	s.Helper()
	v, err := s.m.At(id)
	s.ok(err)
	return tree{s, v}
}

// node walks to a path. The reference is kept.
func (t tree) node(path string) overlay.Inode {
	t.Helper()
	n, err := t.find(path)
	if err != nil {
		t.Fatalf("look up %s: %v", path, err)
	}
	return n
}

func (t tree) find(path string) (overlay.Inode, error) {
	n := t.Root()
	if path == "." {
		return n, nil
	}
	for name := range strings.SplitSeq(path, "/") {
		next, _, err := t.Lookup(n, name)
		if err != nil {
			return nil, err
		}
		n = next
	}
	return n, nil
}

func (t tree) attr(path string) overlay.Attr {
	t.Helper()
	a, err := t.GetAttr(t.node(path), nil)
	t.ok(err)
	return a
}

// slot gives the directory of a path, and its last name.
func (t tree) slot(path string) (overlay.Inode, string) {
	t.Helper()
	return t.node(filepath.Dir(path)), filepath.Base(path)
}

func (t tree) openFile(path string, flags int) overlay.File {
	t.Helper()
	f, err := t.Open(t.node(path), flags, false, nil)
	t.ok(err)
	return f
}

func (t tree) read(path string) string {
	t.Helper()
	f := t.openFile(path, unix.O_RDONLY)
	defer f.Release()
	return t.readFile(f)
}

func (t tree) readFile(f overlay.File) string {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(eofReader{f}, 0, 1<<30))
	t.ok(err)
	return string(b)
}

// eofReader turns the end of a file into io.EOF.
type eofReader struct{ f overlay.File }

func (r eofReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.f.ReadAt(p, off)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

// write makes a file's content, and the file if there is none.
func (t tree) write(path, content string) {
	t.Helper()
	dir, name := t.slot(path)
	var f overlay.File
	n, _, err := t.Lookup(dir, name)
	if err == unix.ENOENT {
		_, f, _, err = t.Create(dir, name, unix.O_WRONLY, 0o644, false, nil)
	} else if err == nil {
		f, err = t.Open(n, unix.O_WRONLY|unix.O_TRUNC, false, nil)
	}
	t.ok(err)
	defer f.Release()
	t.writeFile(f, content)
}

func (t tree) writeFile(f overlay.File, content string) {
	t.Helper()
	if n, err := f.WriteAt([]byte(content), 0); err != nil || n != len(content) {
		t.Fatalf("write: %d, %v", n, err)
	}
}

func (t tree) mkdir(path string) {
	t.Helper()
	dir, name := t.slot(path)
	_, _, err := t.Mkdir(dir, name, 0o755, nil)
	t.ok(err)
}

func (t tree) rename(from, to string) {
	t.Helper()
	a, old := t.slot(from)
	b, now := t.slot(to)
	t.ok(t.Rename(a, old, b, now, 0))
}

func (t tree) unlink(path string) {
	t.Helper()
	dir, name := t.slot(path)
	t.ok(t.Unlink(dir, name))
}

func (t tree) link(from, to string) {
	t.Helper()
	dir, name := t.slot(to)
	_, err := t.Link(t.node(from), dir, name)
	t.ok(err)
}

// has fails unless the content of a file is this.
func (t tree) has(path, content string) {
	t.Helper()
	if got := t.read(path); got != content {
		t.Errorf("%s holds %q, want %q", path, got, content)
	}
}

func (t tree) lacks(path string) {
	t.Helper()
	if _, err := t.find(path); err != unix.ENOENT {
		t.Errorf("look up %s: %v, want ENOENT", path, err)
	}
}

// capture gives the whole of a branch.
func (s *space) capture(name string) treestate.State {
	s.Helper()
	v, err := s.m.Volume(name)
	s.ok(err)
	defer v.Close()
	st, err := treefs.NewVolume(v, treefs.Options{}).Capture()
	s.ok(err)
	return st
}

// same fails unless two states are.
func (s *space) same(want, got treestate.State) {
	s.Helper()
	if diff := treestate.Diff(want, got); len(diff) > 0 {
		s.Errorf("the tree is not what it should be:\n\t%s", strings.Join(diff, "\n\t"))
	}
}
