//go:build linux

package overlay

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Handle is an open regular file. Its methods may be called concurrently, but none after Release.
type Handle struct {
	t        *Tree
	node     *Node
	fd       int
	writable bool
	readable bool // fd can be read, whatever was asked for
	direct   bool
	bare     bool // see Bare

	users    int  // who has borrowed fd; guarded by Tree.openMu
	released bool // the last of them closes fd; guarded by Tree.openMu
}

// Node gives what the handle has open.
func (h *Handle) Node() *Node { return h.node }

// Direct reports whether reads and writes may bypass the handle.
func (h *Handle) Direct() bool { return h.direct }

// Bare reports whether the file is known to have had no xattrs when it was opened for writing. Where it is false, nothing is known.
func (h *Handle) Bare() bool { return h.bare }

// Fd gives the descriptor of the file underneath, to register it for passthrough or to splice from. It is valid until Release.
func (h *Handle) Fd() int { return h.fd }

// replaceMin is the size from which truncating a file to nothing replaces its inode, so that the old one needs no copy. With
// the tier posix-link it is done for every file.
const replaceMin = 64 << 10

// openMask is what is left to the lower of a caller's flags: the kernel gives each write its offset, and
// neither O_DIRECT's alignment nor O_NOATIME's rights are the daemon's.
const openMask = ^(unix.O_CREAT | unix.O_EXCL | unix.O_NOCTTY | unix.O_APPEND | unix.O_DIRECT | unix.O_NOATIME | unix.O_TRUNC)

func wantsWrite(flags int) bool { return flags&unix.O_ACCMODE != unix.O_RDONLY }

// cachedReadMax is the size, in bytes, up to which a file that is opened for reading should be cached: what is read again and again needs no
// request but the open then, while each read past the daemon makes the kernel ask for the access time anew. Larger files
// are not worth their pages being held twice. It is less where Config.LargeMin is.
const cachedReadMax = 128 << 10

// Open opens a regular file. direct asks that reads and writes may bypass the daemon: then the preimage is made safe at once if
// the handle can write. Handle.Direct tells whether that was granted; not where a small file is only to be read, or a large one would have to be
// copied. It is always granted while another direct handle of the node is open.
func (t *Tree) Open(n *Node, flags int, direct bool, c *Caller) (*Handle, error) {
	h, err := t.open(n, flags, direct)
	if err != unix.EACCES || !t.unseen || t.privileged {
		return h, err
	}
	if h, err = t.openAgain(n, flags); err != nil || flags&unix.O_TRUNC == 0 {
		return h, err
	}
	if _, err := t.SetAttr(n, h, &SetAttr{Valid: SetSize}); err != nil {
		h.Release()
		return nil, err
	}
	return h, nil
}

func (t *Tree) open(n *Node, flags int, direct bool) (*Handle, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if n.dir {
		return nil, unix.EISDIR
	}
	write := wantsWrite(flags)
	if n.foreign && (write || flags&unix.O_TRUNC != 0) {
		return nil, unix.EROFS
	}
	if !write && flags&unix.O_TRUNC == 0 {
		var st unix.Statx_t
		fd, err := t.openData(n, flags, &st)
		if err != nil {
			return nil, err
		}
		return t.newHandle(n, fd, false, direct && (int64(st.Size) > min(cachedReadMax, t.largeMin) || t.hasDirect(n))), nil
	}
	if err := t.mayChangeNode(n, "modify"); err != nil {
		return nil, err
	}
	if err := t.beginChange(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return t.openForWrite(n, flags, direct)
}

// openForWrite makes safe what the open, or writes past the daemon, may change. The caller holds n.mu.
func (t *Tree) openForWrite(n *Node, flags int, direct bool) (*Handle, error) {
	if err := t.copyUpNode(n); err != nil {
		return nil, err
	}
	if flags&unix.O_TRUNC != 0 {
		if _, err := t.replaceForTruncate(n); err != nil {
			return nil, err
		}
	} else if _, err := t.replaceForWrite(n); err != nil {
		return nil, err
	}
	var st unix.Statx_t
	fd, readable, err := t.openToChange(n, flags, &st)
	if err != nil {
		return nil, err
	}
	switch {
	case flags&unix.O_TRUNC != 0:
		if err = t.protectSpan(n, allBytes, opened{fd: fd, readable: readable}); err == nil {
			err = truncateFd(fd, flags)
		}
		direct = direct && (wantsWrite(flags) || t.hasDirect(n))
	case direct:
		direct, err = t.protectForDirect(n, opened{fd: fd, readable: readable, st: &st})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	h := t.newHandle(n, fd, wantsWrite(flags), direct)
	h.readable = readable
	h.bare = n.xattrIn.Load() == uint64(t.epoch)|noXattrs
	return h, nil
}

// openToChange opens the data of a file, also for reading if its content may have to be saved: so that it need not be opened
// twice. readable says that this was allowed; st describes the file then.
func (t *Tree) openToChange(n *Node, flags int, st *unix.Statx_t) (fd int, readable bool, err error) {
	if flags&unix.O_ACCMODE == unix.O_WRONLY && t.needsContent(n) {
		if fd, err = t.openData(n, flags&^unix.O_ACCMODE|unix.O_RDWR, st); err == nil {
			return fd, true, nil
		}
	}
	fd, err = t.openData(n, flags, st)
	return fd, flags&unix.O_ACCMODE != unix.O_WRONLY, err
}

// truncateFd empties an open file. open(2) with O_TRUNC and O_RDONLY empties it too, but ftruncate takes a writable one.
func truncateFd(fd, flags int) error {
	if wantsWrite(flags) {
		return unix.Ftruncate(fd, 0)
	}
	return unix.Truncate(procPath(fd), 0)
}

// protectForDirect makes the content safe for writes that the daemon won't see. A large file that would have to be copied for that does not get
// such, if it need not, also where there is nothing to protect yet: it may stay open for long, and each later snapshot would have to save it whole.
// by.st is set.
func (t *Tree) protectForDirect(n *Node, by opened) (bool, error) {
	if t.hasDirect(n) {
		return true, t.protectSpan(n, allBytes, by)
	}
	switch {
	case int64(by.st.Size) <= t.largeMin:
		return true, t.protectSpan(n, allBytes, by)
	case !t.cheapSave():
		return false, nil
	}
	err := t.protectSpan(n, noBytes, by) // which clones the whole, if that can be
	return t.isSafe(n, allBytes), err
}

// KeptByBlocks reports whether of a file only what is overwritten is kept, as long as all its writes come to the daemon.
func (t *Tree) KeptByBlocks(n Inode) bool {
	a, err := t.GetAttr(n.(*Node), nil)
	return err == nil && a.Mode&unix.S_IFMT == unix.S_IFREG && int64(a.Size) > t.largeMin && !t.cheapSave()
}

func (t *Tree) hasDirect(n *Node) bool {
	t.openMu.Lock()
	defer t.openMu.Unlock()
	return n.direct > 0
}

// openData opens the file underneath, through another handle if it has no name any more, and describes it.
func (t *Tree) openData(n *Node, flags int, st *unix.Statx_t) (int, error) {
	flags &= openMask
	fd, err := t.openStated(n, flags|unix.O_NONBLOCK, st)
	if err != unix.ESTALE {
		return fd, err
	}
	if fd, err = t.reopenHandle(n, flags); err != nil {
		return -1, err
	}
	if err := statFd(fd, st); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// reopenHandle opens a file that is open already and may have no name any more.
func (t *Tree) reopenHandle(n *Node, flags int) (int, error) {
	any, err := t.dupHandle(n)
	if err != nil {
		return -1, err
	}
	defer unix.Close(any)
	return unix.Open(procPath(any), flags|unix.O_CLOEXEC, 0)
}

func (t *Tree) newHandle(n *Node, fd int, write, direct bool) *Handle {
	h := &Handle{t: t, node: n, fd: fd, writable: write, direct: direct}
	t.pin(n)
	t.openMu.Lock()
	n.handles = append(n.handles, h)
	if direct {
		n.direct++
	}
	if write {
		t.openFiles[n] = struct{}{}
	}
	t.openMu.Unlock()
	t.handleCount.Add(1)
	return h
}

// Release closes the handle.
func (h *Handle) Release() {
	t, n := h.t, h.node
	t.openMu.Lock()
	if i := slices.Index(n.handles, h); i >= 0 {
		n.handles = slices.Delete(n.handles, i, i+1)
	}
	if h.direct {
		n.direct--
	}
	if h.writable && !slices.ContainsFunc(n.handles, func(o *Handle) bool { return o.writable }) {
		delete(t.openFiles, n)
	}
	h.released = true
	borrowed := h.users > 0
	t.openMu.Unlock()
	if !borrowed {
		_ = unix.Close(h.fd)
	}
	t.handleCount.Add(-1)
	t.unpin(n)
}

// borrow gives the descriptor of a handle, or of any handle of n if h is nil: it stands for the inode, whatever has become of its name. It may have been
// opened for reading alone.
func (t *Tree) borrow(n *Node, h *Handle) (ref dirRef, ok bool) {
	t.openMu.Lock()
	defer t.openMu.Unlock()
	if h == nil {
		if len(n.handles) == 0 {
			return dirRef{}, false
		}
		h = n.handles[0]
	}
	h.users++
	return dirRef{t: t, h: h, fd: h.fd}, true
}

// returned ends a borrow.
func (h *Handle) returned() {
	h.t.openMu.Lock()
	h.users--
	last := h.released && h.users == 0
	h.t.openMu.Unlock()
	if last {
		_ = unix.Close(h.fd)
	}
}

// isOpen reports whether n has handles.
func (t *Tree) isOpen(n *Node) bool {
	t.openMu.Lock()
	defer t.openMu.Unlock()
	return len(n.handles) > 0
}

// dupHandle gives a descriptor of a file that is open, whatever its mode. The caller closes it.
func (t *Tree) dupHandle(n *Node) (int, error) {
	t.openMu.Lock()
	defer t.openMu.Unlock()
	if len(n.handles) == 0 {
		return -1, unix.ESTALE
	}
	h := n.handles[0]
	for _, o := range n.handles {
		if o.writable {
			h = o
		}
	}
	return unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
}

// lastStat tells how a node ended that has neither a name nor a handle.
func (t *Tree) lastStat(n *Node, st *unix.Statx_t) error {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	if n.last == nil {
		return unix.ESTALE
	}
	*st = *n.last
	return nil
}

// Create makes and opens a regular file. It adds a reference to the node that it gives. Where the slot is taken, it
// fails with EEXIST, whatever the flags.
func (t *Tree) Create(dir *Node, name string, flags int, mode uint32, direct bool, c *Caller) (*Node, *Handle, Attr, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	fd := -1
	n, a, err := t.create(made{dir, name, mode, c, "create"}, func(dirfd int, mode uint32) (err error) {
		fd, err = unix.Openat(dirfd, name, flags&openMask|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return nil, nil, Attr{}, err
	}
	return n, t.newHandle(n, fd, wantsWrite(flags), direct), a, nil
}

// Tmpfile makes and opens a regular file without a name, as open(2) does with O_TMPFILE. Link can give it one.
func (t *Tree) Tmpfile(dir *Node, flags int, mode uint32, direct bool, c *Caller) (*Node, *Handle, Attr, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if dir.foreign {
		return nil, nil, Attr{}, unix.EROFS
	}
	if err := t.beginChange(); err != nil {
		return nil, nil, Attr{}, err
	}
	d, err := t.openDirRef(dir)
	if err != nil {
		return nil, nil, Attr{}, err
	}
	defer d.done()
	// Through /proc, as the kernel takes no O_PATH descriptor together with an empty name here.
	fd, err := unix.Open(procPath(d.fd), flags&openMask&^unix.O_DIRECTORY|unix.O_TMPFILE|unix.O_CLOEXEC, t.creationMode(dir, mode, c))
	if err != nil {
		return nil, nil, Attr{}, err
	}
	var st unix.Statx_t
	if err = statFd(fd, &st); err == nil {
		err = t.giveTmpfile(c, d.fd, fd, &st)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, nil, Attr{}, err
	}
	t.nodesMu.Lock()
	n := t.internLocked(&st)
	n.lookups++
	n.dead = true
	t.nodesMu.Unlock()
	h := t.newHandle(n, fd, wantsWrite(flags), direct)
	if t.unseen {
		again, err := t.dupHandle(n)
		if err != nil {
			h.Release()
			t.Forget(n, 1)
			return nil, nil, Attr{}, err
		}
		t.adopt(n, again)
	}
	return n, h, attrOf(&st), nil
}

func (t *Tree) giveTmpfile(c *Caller, dirfd, fd int, st *unix.Statx_t) error {
	if c == nil || !t.privileged || c.UID == st.Uid && c.GID == st.Gid {
		return nil
	}
	var parent unix.Statx_t
	if err := statFd(dirfd, &parent); err != nil {
		return err
	}
	gid := int(c.GID)
	if parent.Mode&unix.S_ISGID != 0 {
		gid = -1
	}
	if err := unix.Fchown(fd, int(c.UID), gid); err != nil {
		return err
	}
	return statFd(fd, st)
}
