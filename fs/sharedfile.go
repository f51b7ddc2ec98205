package fs

import (
	"container/list"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// Where no file is served past the daemon, the kernel need not ask for opens (FUSE_NO_OPEN_SUPPORT): OPEN is answered once with ENOSYS, and from then on there is neither that nor
// RELEASE, which is most of what a program costs that reads many files whose pages are cached. Requests have no handle then. A shared file is the daemon's own open file of
// an inode: opened by the first request that needs one, used by all, and closed when others were used later, or nobody for a while.
//
// What an open decided is decided later: a preimage is made by the first write, and O_TRUNC is a SETATTR (so FUSE_ATOMIC_O_TRUNC must not be
// agreed on). That a file is open nobody knows but the kernel: overlay.Tree.OpensUnseen, and FlushUnseen.

// sharedFile is an open file. Its methods may be called concurrently.
type sharedFile struct {
	overlay.File
	write bool
	bare  uint64 // see openInode.bare; guarded by sharedFiles.mu

	users   int  // guarded by sharedFiles.mu
	dropped bool // the last user closes it; guarded by sharedFiles.mu
	used    bool // since the last sweep; guarded by sharedFiles.mu
}

// sharedFiles has one for some inodes. Of an inode there is one at a time, so that no file is read that was replaced.
type sharedFiles struct {
	max int

	opening [64]sync.Mutex // by the inode's number, held over an open; comes before the locks of a volume

	mu       sync.Mutex
	byNum    map[uint64]*list.Element // of *sharedFile, by overlay.Inode.Num; guarded by mu
	lru      *list.List               // the front was used last; guarded by mu
	sweeping bool                     // guarded by mu
}

const (
	maxSharedFiles = 512
	minSharedFiles = 32

	// sharedFileIdle is how long one stays that nobody uses, up to twice that.
	sharedFileIdle = 5 * time.Second
)

func newSharedFiles() *sharedFiles {
	return &sharedFiles{max: max(minSharedFiles, min(overlay.FileLimit()/4, maxSharedFiles)), byNum: map[uint64]*list.Element{}, lru: list.New()}
}

// take gives the open file of an inode, for who makes the request h, until done. write says that it has to be writable; all can be read whose mode lets their owner.
func (t *sharedFiles) take(n node, write bool, h *fuse.InHeader) (*sharedFile, error) {
	num := n.num()
	if f := t.get(num, write); f != nil {
		return f, nil
	}
	defer t.lockOpening(num)()
	if f := t.get(num, write); f != nil {
		return f, nil
	}
	return t.open(n, write, 0, callerOf(h, 0))
}

// takeEmptied empties a file that the maker of the request has open, and gives it as take does. It is emptied by being opened: another inode may take its place for that, which nobody has open.
func (t *sharedFiles) takeEmptied(n node, h *fuse.InHeader) (*sharedFile, error) {
	defer t.lockOpening(n.num())()
	return t.open(n, true, unix.O_TRUNC, callerOf(h, 0))
}

func (t *sharedFiles) lockOpening(num uint64) (unlock func()) {
	mu := &t.opening[num%uint64(len(t.opening))]
	mu.Lock()
	return mu.Unlock
}

// open opens the file of an inode, and no other is used from then on. The caller holds opening.
func (t *sharedFiles) open(n node, write bool, flags int, c *overlay.Caller) (*sharedFile, error) {
	num := n.num()
	t.drop(num)
	file, err := openSharedFile(n, write, flags, c)
	if err != nil {
		return nil, err
	}
	f := &sharedFile{File: file, write: write, users: 1}
	t.put(num, f)
	return f, nil
}

func openSharedFile(n node, write bool, flags int, c *overlay.Caller) (overlay.File, error) {
	if !write {
		return n.vol.Open(n.Inode, unix.O_RDONLY|flags, false, c)
	}
	h, err := n.vol.Open(n.Inode, unix.O_RDWR|flags, false, c)
	if err == unix.EACCES {
		h, err = n.vol.Open(n.Inode, unix.O_WRONLY|flags, false, c)
	}
	return h, err
}

// created enters the file that was just made, and may be read and written. bare is what openInode.bare would be.
func (t *sharedFiles) created(num uint64, h overlay.File, bare uint64) {
	t.put(num, &sharedFile{File: h, write: true, bare: bare})
}

func (t *sharedFiles) get(num uint64, write bool) *sharedFile {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byNum[num]
	if e == nil {
		return nil
	}
	f := e.Value.(*sharedFile)
	if write && !f.write {
		return nil
	}
	f.users++
	f.used = true
	t.lru.MoveToFront(e)
	return f
}

func (t *sharedFiles) put(num uint64, f *sharedFile) {
	t.mu.Lock()
	closing := t.detach(num)
	f.used = true
	t.byNum[num] = t.lru.PushFront(f)
	var extra []*sharedFile
	for t.lru.Len() > t.max {
		extra = append(extra, t.detach(t.lru.Back().Value.(*sharedFile).Inode().Num()))
	}
	if !t.sweeping {
		t.sweeping = true
		time.AfterFunc(sharedFileIdle, t.sweep)
	}
	t.mu.Unlock()
	closing.release()
	for _, f := range extra {
		f.release()
	}
}

// detach takes the file of an inode out, and gives it where it can be closed. The caller holds mu.
func (t *sharedFiles) detach(num uint64) *sharedFile {
	e := t.byNum[num]
	if e == nil {
		return nil
	}
	delete(t.byNum, num)
	f := t.lru.Remove(e).(*sharedFile)
	f.dropped = true
	if f.users > 0 {
		return nil
	}
	return f
}

// release closes what detach has given.
func (f *sharedFile) release() {
	if f != nil {
		f.Release()
	}
}

// done ends what take has begun.
func (t *sharedFiles) done(f *sharedFile) {
	t.mu.Lock()
	f.users--
	last := f.dropped && f.users == 0
	t.mu.Unlock()
	if last {
		f.Release()
	}
}

// drop closes the file of an inode, when nobody uses it any more. Who comes later opens another one.
func (t *sharedFiles) drop(num uint64) {
	t.mu.Lock()
	f := t.detach(num)
	t.mu.Unlock()
	f.release()
}

// dropUnwritable is drop for a file that could not be written to: another inode may take the place of such a one.
func (t *sharedFiles) dropUnwritable(num uint64) {
	t.mu.Lock()
	var f *sharedFile
	if e := t.byNum[num]; e != nil && !e.Value.(*sharedFile).write {
		f = t.detach(num)
	}
	t.mu.Unlock()
	f.release()
}

// sweep closes what nobody has used since the last sweep.
func (t *sharedFiles) sweep() {
	t.mu.Lock()
	var idle []*sharedFile
	for e := t.lru.Back(); e != nil; {
		f, prev := e.Value.(*sharedFile), e.Prev()
		if f.used || f.users > 0 {
			f.used = false
		} else {
			idle = append(idle, t.detach(f.Inode().Num()))
		}
		e = prev
	}
	if t.sweeping = t.lru.Len() > 0; t.sweeping {
		time.AfterFunc(sharedFileIdle, t.sweep)
	}
	t.mu.Unlock()
	for _, f := range idle {
		f.release()
	}
}

// drain closes everything.
func (t *sharedFiles) drain() {
	t.mu.Lock()
	var all []*sharedFile
	for num := range t.byNum {
		all = append(all, t.detach(num))
	}
	t.mu.Unlock()
	for _, f := range all {
		f.release()
	}
}

func (t *sharedFiles) isBare(num, bare uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byNum[num]
	return e != nil && e.Value.(*sharedFile).bare == bare
}

func (t *sharedFiles) clothe(num uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byNum[num]; e != nil {
		e.Value.(*sharedFile).bare = 0
	}
}

// using is the open file that a request is for.
type using struct {
	overlay.File
	node       node
	sharedFile *sharedFile // nil where the kernel has a handle
}

// use gives the open file of a request: by its handle, or where there are none by its node. end is to be called after it.
func (s *filesystem) use(id, fh uint64, write bool, h *fuse.InHeader) (using, fuse.Status) {
	if !s.noOpen {
		f, st := s.file(fh)
		if !st.Ok() {
			return using{}, st
		}
		return using{File: f.File, node: f.node()}, fuse.OK
	}
	n, st := s.node(id)
	if !st.Ok() {
		return using{}, st
	}
	f, err := s.sharedFiles.take(n, write, h)
	if err != nil {
		n.vol.let()
		return using{}, status(err)
	}
	return using{f.File, n, f}, fuse.OK
}

func (s *filesystem) end(u using) {
	if u.sharedFile != nil {
		s.sharedFiles.done(u.sharedFile)
		u.node.vol.let()
	}
}
