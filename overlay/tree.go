//go:build linux

package overlay

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// overlayfsMagic is OVERLAYFS_SUPER_MAGIC of linux/magic.h.
const overlayfsMagic = 0x794c7630

// Notifier is told what a kernel, or whoever else caches the tree, must forget. It is called without any lock of the
// tree, and never from an operation on the tree.
type Notifier interface {
	// InvalEntry makes it forget what dir has under name, also if that is nothing.
	InvalEntry(dir Inode, name string)
	// InvalInode makes it forget attributes, pages and listings. Dirty pages of shared mappings are written
	// back first: WriteAt is called before it returns.
	InvalInode(n Inode)
	// FlushInode makes it write back dirty pages of shared mappings: WriteAt is called before it returns.
	FlushInode(n Inode)
}

// UnseenFlusher is a Notifier of files that somebody may have mapped without a handle.
type UnseenFlusher interface {
	// FlushUnseen is FlushInode for all of them.
	FlushUnseen()
}

// FlushUnseen is for after what is known to be open was flushed.
func FlushUnseen(n Notifier) {
	if f, ok := n.(UnseenFlusher); ok {
		f.FlushUnseen()
	}
}

// Caller says on whose behalf something is made.
type Caller struct {
	UID, GID, PID uint32
	Umask         uint32
}

// Tree is the live tree. All methods may be called concurrently. Errors that a program should see are plain
// unix.Errno values. The caller has checked permissions, as the kernel does for a FUSE mount with default_permissions; the
// filesystem underneath checks those of the daemon.
type Tree struct {
	store *checkpoint.Store
	tier  *tiers
	log   *slog.Logger

	rootFd, trashFd, tmpFd int
	rootDev                uint64
	mnt                    uint64 // mount ID, where the kernel tells it
	births                 bool   // birth times are stable
	canMoveDirs            bool   // a directory can be renamed into the trash
	renameOverFull         error  // what a rename over a directory with entries gives
	syncCopies             bool   // a copy must be on disk before it takes the place of an old file
	largeMin, blockSize    int64  // see blocks.go
	privileged             bool   // the daemon is root: it gives new files to the caller
	root                   *Node
	dirs                   *dirCache[*Node]
	notifier               Notifier
	ignore                 *ignoring // nil where there are no ignore patterns; set before the tree is used

	mu         sync.RWMutex     // see doc.go
	epoch      checkpoint.Epoch // guarded by mu
	protecting bool             // there is an active checkpoint; guarded by mu
	halfway    bool             // a rollback has failed when a part of it was made; guarded by mu
	locGen     uint64           // grows when locations were swept; guarded by mu
	mayLift    bool             // nobody sees a mode that changes for a moment; guarded by mu, which is held alone

	renameMu sync.Mutex
	trashMu  sync.Mutex

	openMu    sync.Mutex
	openFiles map[*Node]struct{} // nodes with writable handles; guarded by openMu
	orphans   map[*Node]*Handle  // see keepOpen; guarded by openMu

	nodesMu sync.RWMutex
	nodes   map[checkpoint.ID]*Node // guarded by nodesMu
	lastNum uint64                  // guarded by nodesMu

	stirred     atomic.Bool // something may have changed since the last beat; see outside.go
	ledger      *ledger     // when that was
	handleCount atomic.Int64
	orphanCount atomic.Int64 // of orphans
	unseen      bool         // see OpensUnseen
	tempNum     atomic.Uint64
	tempMu      sync.RWMutex // held shared while what an edit stages is in tmp/; before Workspace.admin
}

// SetNotifier sets who is told what to forget. Call it before the tree is used.
func (t *Tree) SetNotifier(n Notifier) { t.notifier = n }

// newTree takes over the descriptors.
func newTree(store *checkpoint.Store, tier *tiers, log *slog.Logger, rootFd, trashFd, tmpFd int, ledger *ledger) (*Tree, error) {
	t := &Tree{
		store: store, tier: tier, log: log, ledger: ledger, rootFd: rootFd, trashFd: trashFd, tmpFd: tmpFd,
		largeMin: largeMin, blockSize: blockSize,
		dirs:      newDirCache[*Node](dirCacheSize()),
		nodes:     map[checkpoint.ID]*Node{},
		openFiles: map[*Node]struct{}{},
		orphans:   map[*Node]*Handle{},
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(rootFd, &fs); err != nil {
		return nil, err
	}
	t.births = fs.Type != overlayfsMagic // there it changes when a file is copied up
	t.canMoveDirs = fs.Type != overlayfsMagic
	t.syncCopies = tier.opts.Sync || fs.Type != unix.EXT4_SUPER_MAGIC && fs.Type != unix.TMPFS_MAGIC // ext4 sees to that itself: auto_da_alloc in ext4(5)
	t.privileged = unix.Geteuid() == 0
	t.renameOverFull = unix.ENOTEMPTY
	if fs.Type == unix.XFS_SUPER_MAGIC {
		t.renameOverFull = unix.EEXIST // rename(2) allows both, and programs see what the lower would say
	}
	var st unix.Statx_t
	if err := statFd(rootFd, &st); err != nil {
		return nil, err
	}
	t.rootDev = unix.Mkdev(st.Dev_major, st.Dev_minor)
	t.mnt = st.Mnt_id
	t.lastNum = 1
	t.root = &Node{num: 1, id: t.idOf(&st), dir: true, lookups: 1}
	t.nodes[t.root.id] = t.root
	return t, nil
}

func (t *Tree) close() {
	t.dirs.close()
	_ = t.ledger.f.Close() // which nothing depends on any more
	for _, fd := range []*int{&t.rootFd, &t.trashFd, &t.tmpFd} {
		_ = unix.Close(*fd)
		*fd = -1 // whoever is late must not meet what has the number next
	}
}

// dirCacheSize leaves most descriptors to open files.
func dirCacheSize() int {
	n := FileLimit() / 4
	return max(16, min(n, 512))
}

// FileLimit is how many descriptors the process may have.
func FileLimit() int {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 1024
	}
	return int(min(lim.Cur, 1<<20))
}

const statxMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// statFd is unix.Statx with an empty path, of which that makes a copy on the heap.
func statFd(fd int, st *unix.Statx_t) error {
	var empty [1]byte
	_, _, e := unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&empty[0])),
		unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, statxMask, uintptr(unsafe.Pointer(st)), 0)
	if e != 0 {
		return e
	}
	return nil
}

func statAt(dirfd int, name string, st *unix.Statx_t) error {
	return unix.Statx(dirfd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statxMask, st)
}

// idOf gives the identity of the inode that st describes.
func (t *Tree) idOf(st *unix.Statx_t) checkpoint.ID {
	id := checkpoint.ID{Ino: st.Ino}
	if t.births && st.Mask&unix.STATX_BTIME != 0 {
		id.Birth = nsOf(st.Btime)
	}
	return id
}

func (t *Tree) isForeign(st *unix.Statx_t) bool {
	return unix.Mkdev(st.Dev_major, st.Dev_minor) != t.rootDev
}

func nsOf(ts unix.StatxTimestamp) int64 { return ts.Sec*1e9 + int64(ts.Nsec) }

func isDir(st *unix.Statx_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

func (t *Tree) occupantOf(st *unix.Statx_t) checkpoint.Occupant {
	return checkpoint.Occupant{ID: t.idOf(st), Mode: uint32(st.Mode), Size: int64(st.Size), Mtime: nsOf(st.Mtime)}
}

// hidden reports whether the slot is that of the store.
func (t *Tree) hidden(dir *Node, name string) bool { return dir == t.root && name == StoreName }

// writable says why nothing can be changed in dir, or nil.
func (t *Tree) writable(dir *Node, name string) error {
	if t.hidden(dir, name) {
		return unix.EPERM
	}
	if dir.foreign {
		return unix.EROFS
	}
	return t.beginChange()
}

// place is where an inode can be reached: a name in an open directory. Call done once.
type place struct {
	dir    dirRef
	parent *Node // of dir; nil for the trash
	name   string
}

func (p place) done() { p.dir.done() }

// placeOf gives a place of a node other than the root. ESTALE says that it has no name any more.
func (t *Tree) placeOf(n *Node) (place, error) {
	t.nodesMu.RLock()
	parent, name, trashed, id := n.parent, n.name, n.trashed, n.id
	t.nodesMu.RUnlock()
	if parent != nil {
		d, err := t.openDirRef(parent)
		return place{d, parent, name}, err
	}
	if trashed {
		return place{dirRef{t: t, fd: t.trashFd}, nil, id.String()}, nil
	}
	return place{}, unix.ESTALE
}

// within runs fn, which needs the right to search the directory n, open as fd. Whoever owns the directory can have shut it for
// themselves, and then it is opened up for that moment, if nobody can see that. The record comes first, so that a death
// meanwhile loses nothing.
func (t *Tree) within(n *Node, fd int, fn func() error) error {
	err := fn()
	if err != unix.EACCES || !t.mayLift || n == nil {
		return err
	}
	if err := t.protectAttr(n); err != nil {
		return err
	}
	return t.lifted(fd, fn)
}

// lockToLook takes mu alone where the daemon may have to look into directories that it has to open up for that.
func (t *Tree) lockToLook() {
	t.mu.Lock()
	t.mayLift = !t.privileged
}

func (t *Tree) unlockLooked() {
	t.mayLift = false
	t.mu.Unlock()
}

// stat describes a node that has a name. It proves the identity of what it finds, so that a concurrent rename is not
// mistaken.
func (t *Tree) stat(n *Node, st *unix.Statx_t) error {
	if n == t.root {
		return statFd(t.rootFd, st)
	}
	for range 8 {
		p, err := t.placeOf(n)
		if err != nil {
			return err
		}
		err = t.within(p.parent, p.dir.fd, func() error { return statAt(p.dir.fd, p.name, st) })
		p.done()
		if err == nil && st.Ino == t.identity(n).Ino {
			return nil
		}
		if err != nil && err != unix.ENOENT {
			return err
		}
	}
	return unix.ESTALE
}

// openNode opens an inode that has a name, whatever its type, without following a symlink, and proves its identity.
// The caller closes the descriptor.
func (t *Tree) openNode(n *Node, flags int) (int, error) {
	var st unix.Statx_t
	return t.openStated(n, flags, &st)
}

// openStated is openNode that describes what it has opened: what proves its identity says the rest, too.
func (t *Tree) openStated(n *Node, flags int, st *unix.Statx_t) (int, error) {
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW
	if n.regular {
		flags &^= unix.O_NONBLOCK // for others, so that a FIFO does not wait; here it would fail while fs/ has a lease on the file, for an instant
	}
	for range 8 {
		fd, err := t.openPlace(n, flags)
		if err == unix.ENOENT || err == unix.ELOOP && flags&unix.O_PATH == 0 {
			continue
		}
		if err != nil {
			return -1, err
		}
		if err := statFd(fd, st); err == nil && (n == t.root || st.Ino == t.identity(n).Ino) {
			return fd, nil
		}
		_ = unix.Close(fd)
	}
	return -1, unix.ESTALE
}

// openPlace opens what is where an inode should be.
func (t *Tree) openPlace(n *Node, flags int) (fd int, err error) {
	if n == t.root {
		return unix.Openat(t.rootFd, ".", flags, 0)
	}
	p, err := t.placeOf(n)
	if err != nil {
		return -1, err
	}
	defer p.done()
	err = t.within(p.parent, p.dir.fd, func() error {
		fd, err = unix.Openat(p.dir.fd, p.name, flags, 0)
		return err
	})
	return fd, err
}

// reach gives a descriptor on which *at calls with AT_EMPTY_PATH, or calls through /proc/self/fd, work for the node: that of
// a handle, a cached one of a directory, or a new one.
func (t *Tree) reach(n *Node) (dirRef, error) {
	var st unix.Statx_t
	return t.reachStated(n, &st)
}

// reachStated is reach that describes the inode if it has to open it: st.Mask tells.
func (t *Tree) reachStated(n *Node, st *unix.Statx_t) (dirRef, error) {
	st.Mask = 0
	if n.dir {
		return t.openDirRef(n)
	}
	fd, err := t.openStated(n, unix.O_PATH, st)
	if err == unix.ESTALE {
		st.Mask = 0
		if fd, err = t.dupHandle(n); err != nil {
			return dirRef{}, unix.ESTALE
		}
	}
	if err != nil {
		return dirRef{}, err
	}
	return dirRef{t: t, fd: fd, owns: true}, nil
}

// reachOpen is reachStated that opens nothing where there is a handle: h or, if that is nil, any of the node. On overlayfs only h will do: a file that was
// copied up since it was opened for reading is another one.
func (t *Tree) reachOpen(n *Node, h *Handle, st *unix.Statx_t) (dirRef, error) {
	if h != nil || t.births && !n.dir {
		if ref, ok := t.borrow(n, h); ok {
			st.Mask = 0
			return ref, nil
		}
	}
	return t.reachStated(n, st)
}
