package fs_test

import (
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// testShelf is a Shelf of whole workspaces: each is a tree of its own, which for a checkpoint can only be read.
type testShelf struct {
	mu      sync.Mutex // guards what follows
	volumes map[fs.ShelfKind]map[string]*shifted
	count   uint64 // of volumes so far
	opened  map[overlay.Volume]int
	opens   int // all in all
}

func newTestShelf() *testShelf {
	return &testShelf{
		volumes: map[fs.ShelfKind]map[string]*shifted{fs.Branches: {}, fs.Checkpoints: {}},
		opened:  map[overlay.Volume]int{},
	}
}

// put makes a name mean the volume of a tree.
func (s *testShelf) put(kind fs.ShelfKind, name string, tree *overlay.Tree) *shifted {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	v := &shifted{v: tree.Volume(), by: s.count << 32, readOnly: kind == fs.Checkpoints}
	s.volumes[kind][name] = v
	return v
}

func (s *testShelf) remove(kind fs.ShelfKind, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.volumes[kind], name)
}

func (s *testShelf) names(kind fs.ShelfKind) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for name := range s.volumes[kind] {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func (s *testShelf) open(kind fs.ShelfKind, name string) (overlay.Volume, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[kind][name]
	if v == nil {
		return nil, nil, errs.New(errs.NotFound, "open", name, "there is none")
	}
	s.opened[v]++
	s.opens++
	return v, sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.opened[v]--; s.opened[v] == 0 {
			delete(s.opened, v)
		}
	}), nil
}

// inUse is how many volumes have not been given back.
func (s *testShelf) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.opened)
}

func (s *testShelf) openCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opens
}

func (s *testShelf) Checkpoints() []string { return s.names(fs.Checkpoints) }
func (s *testShelf) Branches() []string    { return s.names(fs.Branches) }

func (s *testShelf) Checkpoint(id string) (overlay.Volume, func(), error) {
	return s.open(fs.Checkpoints, id)
}

func (s *testShelf) Branch(name string) (overlay.Volume, func(), error) {
	return s.open(fs.Branches, name)
}

// shelved is a mount with a shelf, which has the branch "b" and the checkpoint "c".
type shelved struct {
	*mounted
	shelf  *testShelf
	branch *overlay.Workspace
	top    string // .hyperfs
	b, c   string // the roots of the two
}

func mountShelf(t testing.TB, o fs.Options) *shelved {
	t.Helper()
	needRoot(t)
	s := &shelved{shelf: newTestShelf()}
	s.branch = openWorkspace(t)
	v := s.shelf.put(fs.Branches, "b", s.branch.Tree())
	old := openWorkspace(t)
	s.shelf.put(fs.Checkpoints, "c", old.Tree())
	o.Shelf = s.shelf
	for _, w := range []*overlay.Workspace{s.branch, old} {
		w.Tree().OpensUnseen()
		fill(t, w.Status().Workspace)
	}
	s.mounted = mount(t, o)
	s.branch.Tree().SetNotifier(shiftedNotifier{s.server.Notifier(), v})
	fill(t, s.dir)
	s.top = s.path(overlay.StoreName)
	s.b, s.c = s.path(overlay.StoreName, "branches", "b"), s.path(overlay.StoreName, "checkpoints", "c")
	return s
}

// eachShelf runs a test on a mount of each kind, with a shelf.
func eachShelf(t *testing.T, test func(t *testing.T, s *shelved)) {
	for _, v := range []variant{inPlace, cached, elsewhere} {
		t.Run(v.name, func(t *testing.T) { test(t, mountShelf(t, v.opts)) })
	}
}

func openWorkspace(t testing.TB) *overlay.Workspace {
	t.Helper()
	w, err := overlay.Open(overlay.Config{Workspace: t.TempDir(), NoTmpfs: true})
	must(t, err)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error("close the workspace:", err)
		}
	})
	return w
}

// fill puts some of everything into a directory.
func fill(t testing.TB, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir+"/d/sub", 0o755))
	must(t, os.WriteFile(dir+"/d/f", []byte("content\n"), 0o640))
	must(t, os.WriteFile(dir+"/run", []byte("#!/bin/sh\n"), 0o755))
	must(t, os.Link(dir+"/d/f", dir+"/d/sub/linked"))
	must(t, os.Symlink("d/f", dir+"/link"))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	must(t, unix.Setxattr(dir+"/d/f", "user.note", []byte("x"), 0))
}

// shifted is a volume whose inodes have other numbers, as those of two trees are the same.
type shifted struct {
	v        overlay.Volume
	by       uint64
	readOnly bool
	root     overlay.Inode // of the tree; nil means the tree's own
}

type shiftedInode struct {
	overlay.Inode
	by uint64
}

func (n shiftedInode) Num() uint64 { return n.by + n.Inode.Num() }

type shiftedFile struct {
	overlay.File
	by uint64
}

func (f shiftedFile) Inode() overlay.Inode { return shiftedInode{f.File.Inode(), f.by} }

func (f shiftedFile) CopyFileRange(offIn int64, out overlay.File, offOut int64, length, flags int) (int, error) {
	to, ok := out.(shiftedFile)
	if !ok || to.by != f.by {
		return 0, unix.EXDEV
	}
	return f.File.CopyFileRange(offIn, to.File, offOut, length, flags)
}

type shiftedDir struct {
	overlay.Dir
	by uint64
}

func (d shiftedDir) Inode() overlay.Inode { return shiftedInode{d.Dir.Inode(), d.by} }

// shiftedNotifier passes on what the tree below a shifted volume tells.
type shiftedNotifier struct {
	to overlay.Notifier
	v  *shifted
}

func (t shiftedNotifier) InvalEntry(dir overlay.Inode, name string) {
	t.to.InvalEntry(t.v.wrap(dir), name)
}
func (t shiftedNotifier) InvalInode(n overlay.Inode) { t.to.InvalInode(t.v.wrap(n)) }
func (t shiftedNotifier) FlushInode(n overlay.Inode) { t.to.FlushInode(t.v.wrap(n)) }

func (s *shifted) wrap(n overlay.Inode) overlay.Inode { return shiftedInode{n, s.by} }

// in gives the tree's inode. One of another volume must never come here.
func (s *shifted) in(n overlay.Inode) overlay.Inode {
	own := n.(shiftedInode)
	if own.by != s.by {
		panic("an inode of another volume")
	}
	return own.Inode
}

func (s *shifted) inFile(f overlay.File) overlay.File {
	if f == nil {
		return nil
	}
	return f.(shiftedFile).File
}

func (s *shifted) made(n overlay.Inode, a overlay.Attr, err error) (overlay.Inode, overlay.Attr, error) {
	if err != nil {
		return nil, a, err
	}
	return s.wrap(n), a, nil
}

func (s *shifted) opened(n overlay.Inode, f overlay.File, a overlay.Attr, err error) (overlay.Inode, overlay.File, overlay.Attr, error) {
	if err != nil {
		return nil, nil, a, err
	}
	return s.wrap(n), shiftedFile{f, s.by}, a, nil
}

func (s *shifted) Root() overlay.Inode {
	if s.root != nil {
		return s.wrap(s.root)
	}
	return s.wrap(s.v.Root())
}

func (s *shifted) Forget(n overlay.Inode, nlookup uint64) { s.v.Forget(s.in(n), nlookup) }

func (s *shifted) Lookup(dir overlay.Inode, name string) (overlay.Inode, overlay.Attr, error) {
	return s.made(s.v.Lookup(s.in(dir), name))
}

func (s *shifted) GetAttr(n overlay.Inode, f overlay.File) (overlay.Attr, error) {
	return s.v.GetAttr(s.in(n), s.inFile(f))
}

func (s *shifted) Readlink(n overlay.Inode) (string, error) { return s.v.Readlink(s.in(n)) }

func (s *shifted) Statfs() (unix.Statfs_t, error) { return s.v.Statfs() }

func (s *shifted) OpenDir(n overlay.Inode) (overlay.Dir, error) {
	d, err := s.v.OpenDir(s.in(n))
	if err != nil {
		return nil, err
	}
	return shiftedDir{d, s.by}, nil
}

func (s *shifted) GetXattr(n overlay.Inode, name string, dest []byte) (int, error) {
	return s.v.GetXattr(s.in(n), name, dest)
}

func (s *shifted) ListXattr(n overlay.Inode, dest []byte) (int, error) {
	return s.v.ListXattr(s.in(n), dest)
}

func (s *shifted) Open(n overlay.Inode, flags int, direct bool, c *overlay.Caller) (overlay.File, error) {
	if direct {
		panic("asked for a file to be served past the daemon")
	}
	if s.readOnly && flags&(unix.O_ACCMODE|unix.O_TRUNC) != unix.O_RDONLY {
		return nil, unix.EROFS
	}
	f, err := s.v.Open(s.in(n), flags, false, c)
	if err != nil {
		return nil, err
	}
	return shiftedFile{f, s.by}, nil
}

func (s *shifted) Create(dir overlay.Inode, name string, flags int, mode uint32, direct bool, c *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	if direct {
		panic("asked for a file to be served past the daemon")
	}
	if s.readOnly {
		return nil, nil, overlay.Attr{}, unix.EROFS
	}
	return s.opened(s.v.Create(s.in(dir), name, flags, mode, false, c))
}

func (s *shifted) Tmpfile(dir overlay.Inode, flags int, mode uint32, _ bool, c *overlay.Caller) (overlay.Inode, overlay.File, overlay.Attr, error) {
	if s.readOnly {
		return nil, nil, overlay.Attr{}, unix.EROFS
	}
	return s.opened(s.v.Tmpfile(s.in(dir), flags, mode, false, c))
}

func (s *shifted) SetAttr(n overlay.Inode, f overlay.File, in *overlay.SetAttr) (overlay.Attr, error) {
	if s.readOnly {
		return overlay.Attr{}, unix.EROFS
	}
	return s.v.SetAttr(s.in(n), s.inFile(f), in)
}

func (s *shifted) Mkdir(dir overlay.Inode, name string, mode uint32, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	if s.readOnly {
		return nil, overlay.Attr{}, unix.EROFS
	}
	return s.made(s.v.Mkdir(s.in(dir), name, mode, c))
}

func (s *shifted) Mknod(dir overlay.Inode, name string, mode, rdev uint32, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	if s.readOnly {
		return nil, overlay.Attr{}, unix.EROFS
	}
	return s.made(s.v.Mknod(s.in(dir), name, mode, rdev, c))
}

func (s *shifted) Symlink(dir overlay.Inode, name, target string, c *overlay.Caller) (overlay.Inode, overlay.Attr, error) {
	if s.readOnly {
		return nil, overlay.Attr{}, unix.EROFS
	}
	return s.made(s.v.Symlink(s.in(dir), name, target, c))
}

// change is for what gives an error only.
func (s *shifted) change(fn func() error) error {
	if s.readOnly {
		return unix.EROFS
	}
	return fn()
}

func (s *shifted) Link(n, dir overlay.Inode, name string) (a overlay.Attr, err error) {
	err = s.change(func() error { a, err = s.v.Link(s.in(n), s.in(dir), name); return err })
	return a, err
}

func (s *shifted) Unlink(dir overlay.Inode, name string) error {
	return s.change(func() error { return s.v.Unlink(s.in(dir), name) })
}

func (s *shifted) Rmdir(dir overlay.Inode, name string) error {
	return s.change(func() error { return s.v.Rmdir(s.in(dir), name) })
}

func (s *shifted) Rename(oldDir overlay.Inode, oldName string, newDir overlay.Inode, newName string, flags uint32) error {
	return s.change(func() error { return s.v.Rename(s.in(oldDir), oldName, s.in(newDir), newName, flags) })
}

func (s *shifted) SetXattr(n overlay.Inode, name string, value []byte, flags int) error {
	return s.change(func() error { return s.v.SetXattr(s.in(n), name, value, flags) })
}

func (s *shifted) RemoveXattr(n overlay.Inode, name string) error {
	return s.change(func() error { return s.v.RemoveXattr(s.in(n), name) })
}
