package fs

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// ioMode is how the kernel serves the open files of an inode. All that are open at the same time have the same: it fails
// an open that mixes them with EIO (fs/fuse/iomode.c).
type ioMode uint8

const (
	ioNone        ioMode = iota // no open file
	ioCached                    // through the daemon and the page cache
	ioPassthrough               // straight to the file underneath
)

// openFile is what a file handle of the kernel stands for.
type openFile struct {
	overlay.File
	vol   *volume // held
	inode *openInode
	flags int
	uid   uint32 // who opened it
}

func (f *openFile) node() node { return node{f.vol, f.Inode()} }

func (f *openFile) writes() bool { return wantsWrite(f.flags) }

// canMap reports whether a mapping that can write may outlive the file. What was opened for writing alone cannot be mapped at all (do_mmap in mm/mmap.c).
func (f *openFile) canMap() bool {
	return f.Direct() && f.writes() && f.flags&unix.O_ACCMODE != unix.O_WRONLY
}

func wantsWrite(flags int) bool { return flags&unix.O_ACCMODE != unix.O_RDONLY }

// openInode is an inode with open files, or with an open or a close under way.
type openInode struct {
	users int // who holds it; guarded by openInodes.mu

	// bare says that it had no capabilities when it was opened for writing, and that nobody has set an xattr since: it is one more than
	// filesystem.invalidated was before that. What is too large for that, or 0, says nothing. See openInodes.isBare.
	bare atomic.Uint64

	mu      sync.Mutex // held over a whole open or close; guards what follows
	mode    ioMode
	files   []*openFile
	backing int32     // the kernel's number of the file underneath, in ioPassthrough
	mapped  *openFile // closed, but mappings may still write to it: see linger
	stay    bool      // those who read past the daemon don't go: see outwait

	mappable bool // a file was closed that writable mappings may be left of, and nothing has settled that since
}

// openInodes decides the mode of each open: the first one of an inode does, the others follow.
type openInodes struct {
	s        *filesystem
	byBlocks func(overlay.Inode) bool // see overlay.Tree.KeptByBlocks
	on       atomic.Bool              // passthrough may be tried

	mu     sync.Mutex
	byNum  map[uint64]*openInode // by overlay.Inode.Num; guarded by mu
	reason string                // why passthrough is off; guarded by mu
}

func newOpenInodes(s *filesystem) *openInodes {
	return &openInodes{s: s, byNum: map[uint64]*openInode{}}
}

// hold gives the entry of n, which stays until let.
func (t *openInodes) hold(n overlay.Inode) *openInode {
	t.mu.Lock()
	defer t.mu.Unlock()
	oi := t.byNum[n.Num()]
	if oi == nil {
		oi = &openInode{}
		t.byNum[n.Num()] = oi
	}
	oi.users++
	return oi
}

func (t *openInodes) let(n overlay.Inode, oi *openInode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if oi.users--; oi.users == 0 {
		delete(t.byNum, n.Num())
	}
}

// open opens a file in the mode that its inode has, or gets by this open.
func (t *openInodes) open(n node, flags int, c *overlay.Caller, out *fuse.OpenOut) (*openFile, error) {
	oi := t.hold(n.Inode)
	if n.vol.main && wantsWrite(flags) {
		t.outwait(oi, n.Inode)
	}
	oi.mu.Lock()
	defer oi.mu.Unlock()
	direct := t.wantsDirect(oi, n, flags, c.UID)
	since := t.beginBare(oi, n.vol, flags)
	h, err := n.vol.Open(n.Inode, flags, direct, c)
	var f *openFile
	if err == nil {
		f, err = t.admit(n.vol, oi, h, flags, c.UID, out)
	}
	if err != nil {
		t.let(n.Inode, oi)
		return nil, err
	}
	t.endBare(f, since)
	return f, nil
}

// outwaitMax is how long a close may be under way that an open for writing waits for.
const outwaitMax = 16 * time.Millisecond

// outwait gives closes that are under way the time to come, before a large file is opened for writing that is open past the daemon for reading alone: it would have to be
// saved whole as long as anybody has it open. Some programs look into a file before they open it for writing, as SQLite's shell does, and the kernel tells of their close only
// after it has returned. It waits once for those who do not go.
func (t *openInodes) outwait(oi *openInode, n overlay.Inode) {
	if !oi.readPast() || !t.byBlocks(n) {
		return
	}
	for wait := outwaitMax / 64; wait < outwaitMax; wait *= 2 {
		time.Sleep(wait)
		if !oi.readPast() {
			return
		}
	}
	oi.mu.Lock()
	defer oi.mu.Unlock()
	oi.stay = oi.mode == ioPassthrough
}

// readPast reports whether a file is open past the daemon, by nobody that writes, and whoever has it open may be about to close it.
func (oi *openInode) readPast() bool {
	oi.mu.Lock()
	defer oi.mu.Unlock()
	return oi.mode == ioPassthrough && oi.mapped == nil && !oi.stay && !slices.ContainsFunc(oi.files, (*openFile).writes)
}

// wantsDirect tells what to ask the tree for. Mappings that outlive their file see no pages but those underneath,
// so they too keep the mode as it is. The caller holds oi.mu.
func (t *openInodes) wantsDirect(oi *openInode, n node, flags int, uid uint32) bool {
	switch {
	case oi.mode == ioCached || !n.vol.main:
		return false
	case oi.mode == ioPassthrough || oi.mapped != nil:
		return true
	case !t.passthrough():
		return false
	case uid == 0 || !wantsWrite(flags): // of what is only read, the tree decides by the size
		return true
	}
	a, err := n.vol.GetAttr(n.Inode, nil)
	return err == nil && !privileged(a.Mode) // see checkPrivileged
}

// created is open for a file that the tree has just made and opened: it has no capabilities, and nobody knows it yet who could give it any. since is what
// filesystem.invalidated was before that.
func (t *openInodes) created(v *volume, h overlay.File, flags int, uid uint32, since uint64, out *fuse.OpenOut) (*openFile, error) {
	n := h.Inode()
	oi := t.hold(n)
	oi.mu.Lock()
	defer oi.mu.Unlock()
	f, err := t.admit(v, oi, h, flags, uid, out)
	if err != nil {
		t.let(n, oi)
		return nil, err
	}
	if v.main && t.s.inPlace && f.writes() {
		oi.bare.Store(since + 1)
	}
	return f, nil
}

// admit settles the mode of a handle and tells the kernel. It takes the handle over. The caller holds oi.mu.
func (t *openInodes) admit(v *volume, oi *openInode, h overlay.File, flags int, uid uint32, out *fuse.OpenOut) (*openFile, error) {
	if h.Direct() && oi.mode == ioNone && !t.register(oi, h) {
		again, err := t.reopenCached(v, h, flags)
		if err != nil {
			return nil, err
		}
		h = again
	}
	f := &openFile{File: h, vol: v, inode: oi, flags: flags, uid: uid}
	if err := t.checkPrivileged(oi, f); err != nil {
		h.Release()
		return nil, err
	}
	if oi.mode == ioNone {
		oi.mode = ioCached
	}
	v.hold()
	oi.files = append(oi.files, f)
	out.OpenFlags = t.openFlags(v, oi)
	out.BackingID = oi.backing
	return f, nil
}

// checkPrivileged refuses what the tree promises not to be. Where somebody but root opens a set-user-ID file for writing that has to be
// served by passthrough, it clears that at once: the kernel leaves it to the daemon to do so on a write, and lets it see
// none; and the lower does not clear it, as the kernel writes to it with the daemon's rights.
func (t *openInodes) checkPrivileged(oi *openInode, f *openFile) error {
	if oi.mode != ioPassthrough {
		return nil
	}
	if !f.Direct() {
		return errors.New("a file that is open for passthrough cannot be opened otherwise")
	}
	if f.uid != 0 && f.writes() {
		return t.s.killPriv(f.node(), f.File)
	}
	return nil
}

// closeTime is how long a file that was closed may go on to count as open.
const closeTime = 250 * time.Millisecond

// mayGrant reports whether a file may get set-user-ID or set-group-ID by uid: not while somebody else can write to it and would
// not be seen doing so. It waits for closes that are under way.
func (t *openInodes) mayGrant(n overlay.Inode, uid uint32) bool {
	oi := t.hold(n)
	defer t.let(n, oi)
	for wait := 5 * time.Millisecond; oi.writtenUnseen(uid); wait *= 2 {
		if wait > closeTime {
			return false
		}
		time.Sleep(wait)
	}
	return true
}

// writtenUnseen reports whether somebody else than root and uid may be writing past the daemon.
func (oi *openInode) writtenUnseen(uid uint32) bool {
	oi.mu.Lock()
	defer oi.mu.Unlock()
	if oi.mode != ioPassthrough && oi.mapped == nil {
		return false
	}
	stranger := func(f *openFile) bool { return f.writes() && f.uid != 0 && f.uid != uid }
	return slices.ContainsFunc(oi.files, stranger) || oi.mapped != nil && stranger(oi.mapped)
}

// openFlags are what the kernel is told of an open file. Nothing is to be done at a close.
func (t *openInodes) openFlags(v *volume, oi *openInode) uint32 {
	switch {
	case oi.mode == ioPassthrough:
		t.s.meter.note(eventPassthrough)
		return fuse.FOPEN_NOFLUSH | fuse.FOPEN_PASSTHROUGH // FOPEN_KEEP_CACHE is not allowed with it
	case v.owned:
		return fuse.FOPEN_NOFLUSH | fuse.FOPEN_KEEP_CACHE
	case v.uncached && t.s.mapsDirect:
		return fuse.FOPEN_NOFLUSH | fuse.FOPEN_DIRECT_IO
	}
	return fuse.FOPEN_NOFLUSH
}

// reopenCached replaces a handle by one that is not direct.
func (t *openInodes) reopenCached(v *volume, h overlay.File, flags int) (overlay.File, error) {
	defer h.Release()
	const done = unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_TMPFILE&^unix.O_DIRECTORY
	return v.Open(h.Inode(), flags&^done, false, nil)
}

// close ends an open file.
func (t *openInodes) close(f *openFile) {
	oi := f.inode
	oi.mu.Lock()
	defer oi.mu.Unlock()
	oi.files = slices.DeleteFunc(oi.files, func(o *openFile) bool { return o == f })
	if len(oi.files) == 0 {
		t.unregister(oi)
		oi.mode, oi.stay = ioNone, false
	}
	oi.mappable = oi.mappable || f.canMap()
	if oi.mappable && f.Direct() && f.writes() && oi.mapped == nil && !slices.ContainsFunc(oi.files, (*openFile).writes) {
		oi.mapped = f
	} else {
		t.release(f)
	}
	t.linger(oi, firstLook)
}

// isBare reports whether n is known to have no capabilities: nothing but a request can have given it any since it was looked at, or else the kernel was
// told to forget something. It may be asked for a file of the live tree that is mounted in place.
func (t *openInodes) isBare(n overlay.Inode) bool {
	t.mu.Lock()
	oi := t.byNum[n.Num()]
	t.mu.Unlock()
	return oi != nil && oi.bare.Load() == t.s.invalidated.Load()+1
}

// isBare is openInodes.isBare, also where the kernel opens files by itself.
func (s *filesystem) isBare(n overlay.Inode) bool {
	if s.noOpen {
		return s.sharedFiles.isBare(n.Num(), s.invalidated.Load()+1)
	}
	return s.opens.isBare(n)
}

// unsureBare is what openInode.bare has added while it is being found out.
const unsureBare = 1 << 63

// beginBare says that the file is looked at from now on: whoever gives it an xattr after that has endBare say nothing. It is 0 where the answer
// would not hold. The caller holds oi.mu, until endBare has returned.
func (t *openInodes) beginBare(oi *openInode, v *volume, flags int) (since uint64) {
	if !v.main || !t.s.inPlace || !wantsWrite(flags) {
		return 0
	}
	since = t.s.invalidated.Load() + 1
	oi.bare.Store(since | unsureBare)
	return since
}

// endBare notes it where a file that was just opened for writing has no capabilities. The kernel is about to ask, and the tree may know or else the descriptor is at
// hand now.
func (t *openInodes) endBare(f *openFile, since uint64) {
	if since == 0 {
		return
	}
	is := false
	if h, ok := f.File.(*overlay.Handle); ok && h.Bare() {
		is = true
	} else if _, err := unix.Fgetxattr(f.Fd(), capabilityXattr, nil); err == unix.ENODATA {
		is = true
	}
	if is {
		f.inode.bare.CompareAndSwap(since|unsureBare, since)
	}
}

// clothe makes isBare false for n. It comes after n was given an xattr.
func (t *openInodes) clothe(n overlay.Inode) {
	t.mu.Lock()
	oi := t.byNum[n.Num()]
	t.mu.Unlock()
	if oi != nil {
		oi.bare.Store(0)
	}
}

// isCached reports whether n has open files that the kernel keeps pages of.
func (t *openInodes) isCached(n overlay.Inode) bool {
	t.mu.Lock()
	oi := t.byNum[n.Num()]
	t.mu.Unlock()
	if oi == nil {
		return false
	}
	oi.mu.Lock()
	defer oi.mu.Unlock()
	return oi.mode == ioCached
}

func (t *openInodes) release(f *openFile) {
	n := f.Inode()
	f.File.Release()
	t.let(n, f.inode)
	f.vol.let()
}
