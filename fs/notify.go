package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// notifier tells the kernel what to forget. Its methods wait for requests that are under way; see the package's comment.
type notifier struct{ s *filesystem }

var (
	_ overlay.Notifier = notifier{}
	_ overlay.Teller   = teller{}
)

// barrierName is a name that hardly anything has: an entry notification for it only waits for the directory's lock. It is one that could
// be, so that no kernel refuses it before it has waited.
const barrierName = overlay.StoreName + ".barrier"

// knows reports whether the kernel may have heard of n, and makes void the replies that are being worked out.
func (t notifier) knows(n overlay.Inode) bool {
	t.s.invalidated.Add(1)
	return t.s.kernel != nil && (n.Num() == fuse.FUSE_ROOT_ID || t.s.nodes.has(n.Num()))
}

// InvalEntry makes the kernel forget what dir has under name, also that it has nothing. The kernel takes the directory's
// lock for it, so it first applies the replies to all lookups under way there.
func (t notifier) InvalEntry(dir overlay.Inode, name string) {
	t.s.meter.note(eventInvalEntry)
	if t.knows(dir) {
		t.s.kernel.EntryNotify(dir.Num(), name)
	}
}

// InvalInode makes the kernel forget attributes, ACLs, and pages from offset 0 to the end, be they of a file or
// of a listing. It writes back dirty ones first.
func (t notifier) InvalInode(n overlay.Inode) {
	t.s.meter.note(eventInvalInode)
	t.s.sharedFiles.drop(n.Num())
	if !t.knows(n) {
		return
	}
	if n.IsDir() {
		t.s.listings.invalidate(n)
		t.s.kernel.EntryNotify(n.Num(), barrierName) // waits until listings under way are in the cache that is dropped next
	}
	t.inode(n.Num())
}

// FlushInode makes the kernel write back dirty pages. There is no notification that only does this: it forgets them too. A file that is
// served past the daemon has none; if it was closed just now, it need not count as open any more.
func (t notifier) FlushInode(n overlay.Inode) {
	if t.s.noOpen {
		return // see FlushUnseen
	}
	t.s.meter.note(eventFlushInode)
	t.s.opens.settleNow(n)
	if t.s.opens.isCached(n) && t.knows(n) {
		t.s.kernel.InodeNotify(n.Num(), 0, 0)
	}
}

// inode sends an invalidation. ENOENT for a node that the table has means that the kernel is about to apply the reply that
// first named it, and that the reply may be out of date; or that it has forgotten it, and the daemon will hear so. Either takes
// some microseconds.
func (t notifier) inode(num uint64) {
	for wait := 10 * time.Microsecond; wait < 50*time.Millisecond; wait *= 2 {
		if t.s.kernel.InodeNotify(num, 0, 0) != fuse.ENOENT || !t.s.nodes.has(num) {
			return
		}
		nap(wait)
	}
}

// nap has the thread sleep: time.Sleep would take a millisecond, which is what the runtime's poller counts in. A signal may end it early.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil)
}

// teller is a notifier that has programs which watch files told, too. In a branch mount none are.
type teller struct{ everywhere }

// Removed is InvalEntry for a name of a file that has none any more. The kernel ends what watches the file itself (IN_DELETE_SELF).
func (t teller) Removed(dir overlay.Inode, name string, gone overlay.Inode) {
	t.s.meter.note(eventInvalEntry)
	if t.knows(dir) {
		t.s.kernel.DeleteNotify(dir.Num(), gone.Num(), name)
	}
}

// Tell has the kernel forget, and then programs told.
func (t teller) Tell(effects []overlay.Effect, forget func()) { t.s.echo.tell(effects, forget) }
