package fs

import (
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// retryWindow is how soon after an ESTALE the same thread asks again, if it was the kernel that looked again.
const retryWindow = 20 * time.Millisecond

// staleOpens turn the second ESTALE in a row of a thread into ENOENT. A file can be replaced after the kernel has looked
// it up and before it opens it; told ESTALE, the kernel looks again, but only once, and then shows ESTALE to the program. No
// program expects that of a local filesystem, and the name did mean nothing for a moment.
type staleOpens [64]atomic.Uint64 // thread << 32 | milliseconds, by thread

func (t *staleOpens) status(pid uint32, err error) fuse.Status {
	if err != unix.ESTALE {
		return status(err)
	}
	slot := &t[pid%uint32(len(t))]
	now := uint32(time.Now().UnixMilli())
	last := slot.Swap(uint64(pid)<<32 | uint64(now))
	if uint32(last>>32) == pid && now-uint32(last) < uint32(retryWindow.Milliseconds()) {
		slot.Store(0)
		return fuse.ENOENT
	}
	return fuse.Status(unix.ESTALE)
}
