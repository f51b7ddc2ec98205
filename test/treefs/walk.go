// Package treefs makes an overlay.Tree usable with paths, without FUSE: it does what the kernel does between a system call and
// the file system (walks paths, remembers names, refuses what the VFS refuses), so that tests can drive a tree many times
// faster than through a mount.
//
// It is for one goroutine. Like the kernel above an in-place mount it can keep names for good, and then depends on the
// tree's notifications after a rollback.
package treefs

import (
	"errors"
	"strings"
	"sync"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// FS is a tree with paths. It implements ops.FS.
type FS struct {
	vol    overlay.Volume
	caller *overlay.Caller
	o      Options

	mu      sync.Mutex // guards what follows; notifications may come from any goroutine
	dentry  map[slot]overlay.Inode
	pending []*file // files with mapped pages that were written and not yet given to the tree
	opened  int     // files opened so far, to choose every other one
}

// Options of an FS.
type Options struct {
	// KeepNames makes the FS remember names until the tree says that they are void, as the kernel does in place.
	KeepNames bool
	// Direct makes every other file that is opened one whose reads and writes pass the tree by.
	Direct bool
}

// slot is a name in a directory.
type slot struct {
	dir  overlay.Inode
	name string
}

// New makes an FS of the live tree and becomes its notifier.
func New(tree *overlay.Tree, o Options) *FS {
	f := NewVolume(tree.Volume(), o)
	tree.SetNotifier(f)
	return f
}

// NewVolume makes an FS of a volume, whose notifier the caller makes it.
func NewVolume(vol overlay.Volume, o Options) *FS {
	f := &FS{vol: vol, o: o, dentry: make(map[slot]overlay.Inode)}
	f.caller = &overlay.Caller{
		UID: uint32(unix.Getuid()), GID: uint32(unix.Getgid()), PID: uint32(unix.Getpid()), Umask: umask(),
	}
	return f
}

// umask reads the process's umask, which there is no other way to do than by setting it.
func umask() uint32 {
	old := unix.Umask(0o022)
	unix.Umask(old)
	return uint32(old)
}

// InvalEntry implements overlay.Notifier.
func (f *FS) InvalEntry(dir overlay.Inode, name string) { f.forget(slot{dir, name}) }

// InvalInode implements overlay.Notifier. The FS keeps neither attributes nor content.
func (f *FS) InvalInode(overlay.Inode) {}

// FlushInode implements overlay.Notifier: the kernel would write the dirty pages of n back.
func (f *FS) FlushInode(n overlay.Inode) { f.flush(func(x *file) bool { return x.h.Inode() == n }) }

// Flush gives all mapped pages that were written to the tree.
func (f *FS) Flush() { f.flush(func(*file) bool { return true }) }

func (f *FS) flush(which func(*file) bool) {
	f.mu.Lock()
	var rest, now []*file
	for _, x := range f.pending {
		if which(x) {
			now = append(now, x)
		} else {
			rest = append(rest, x)
		}
	}
	f.pending = rest
	f.mu.Unlock()
	for _, x := range now {
		x.writeBack()
	}
}

// lookup gives the node of a name, or an errno. The FS owns the reference; done may give it back.
func (f *FS) lookup(dir overlay.Inode, name string) (overlay.Inode, error) {
	s := slot{dir, name}
	if n, known := f.kept(s); n != nil {
		return n, nil
	} else if known {
		return nil, unix.ENOENT
	}
	n, _, err := f.vol.Lookup(dir, name)
	if errors.Is(err, unix.ENOENT) {
		f.keep(s, nil)
	}
	if err != nil {
		return nil, err
	}
	f.keep(s, n)
	return n, nil
}

// kept gives what is remembered of a name: a node, or that there is none.
func (f *FS) kept(s slot) (n overlay.Inode, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, known = f.dentry[s]
	return n, known
}

// keep remembers n, whose reference the FS owns from now on; nil means that there is no such name.
func (f *FS) keep(s slot, n overlay.Inode) {
	f.mu.Lock()
	old := f.dentry[s]
	f.dentry[s] = n
	f.mu.Unlock()
	f.put(old)
}

// put gives one reference back.
func (f *FS) put(n overlay.Inode) {
	if n != nil {
		f.vol.Forget(n, 1)
	}
}

// forget drops a name and all that is remembered below it, as the kernel does.
func (f *FS) forget(s slot) {
	f.mu.Lock()
	gone := f.cut(s, nil)
	f.mu.Unlock()
	for _, n := range gone {
		f.put(n)
	}
}

// cut takes s and what is below it out and adds the nodes to gone. The caller holds mu.
func (f *FS) cut(s slot, gone []overlay.Inode) []overlay.Inode {
	n := f.dentry[s]
	delete(f.dentry, s)
	if n == nil {
		return gone
	}
	if n.IsDir() {
		for below := range f.dentry {
			if below.dir == n {
				gone = f.cut(below, gone)
			}
		}
	}
	return append(gone, n)
}

// move does what the kernel does with its dentries after a rename.
func (f *FS) move(from, to slot, exchange bool) {
	if !exchange {
		f.forget(to)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a, b := f.dentry[from], f.dentry[to]
	delete(f.dentry, from)
	delete(f.dentry, to)
	if a != nil {
		f.dentry[to] = a
	}
	if b != nil {
		f.dentry[from] = b
	}
}

// done ends a call: without KeepNames nothing is remembered between calls.
func (f *FS) done() {
	if !f.o.KeepNames {
		f.Drop()
	}
}

// Drop forgets all names, as the kernel may at any time.
func (f *FS) Drop() {
	f.mu.Lock()
	all := f.dentry
	f.dentry = make(map[slot]overlay.Inode)
	f.mu.Unlock()
	for _, n := range all {
		f.put(n)
	}
}

// dir walks to a directory. "" and "." are the root.
func (f *FS) dir(path string) (overlay.Inode, error) {
	n := f.vol.Root()
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." {
			continue
		}
		next, err := f.lookup(n, name)
		if err != nil {
			return nil, err
		}
		if !next.IsDir() {
			return nil, f.notDir(next)
		}
		n = next
	}
	return n, nil
}

// notDir is the error of a walk through something that isn't a directory.
func (f *FS) notDir(n overlay.Inode) error {
	a, err := f.vol.GetAttr(n, nil)
	if err == nil && a.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.ELOOP
	}
	return unix.ENOTDIR
}

// slot gives the place of path: its directory and its last name.
func (f *FS) slot(path string) (slot, error) {
	i := strings.LastIndexByte(path, '/')
	dir, name := "", path
	if i >= 0 {
		dir, name = path[:i], path[i+1:]
	}
	n, err := f.dir(dir)
	return slot{n, name}, err
}

// node walks to what path names, without following it.
func (f *FS) node(path string) (overlay.Inode, error) {
	if path == "." {
		return f.vol.Root(), nil
	}
	s, err := f.slot(path)
	if err != nil {
		return nil, err
	}
	return f.lookup(s.dir, s.name)
}

// stat walks to what path names and gives its attributes too.
func (f *FS) stat(path string) (overlay.Inode, overlay.Attr, error) {
	n, err := f.node(path)
	if err != nil {
		return nil, overlay.Attr{}, err
	}
	a, err := f.vol.GetAttr(n, nil)
	return n, a, err
}
