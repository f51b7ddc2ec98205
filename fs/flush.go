package fs

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// cuts are the files whose size was set a short while ago, to more than nothing. While the kernel waits for that it keeps their dirty pages back (fuse_set_nowrite in fs/fuse/dir.c), until the
// program goes on that has set it: when that is the daemon can't know.
type cuts struct {
	mu   sync.Mutex
	last map[uint64]time.Time // by overlay.Inode.Num; guarded by mu
}

const (
	cutLong = 2 * time.Second // for as long the kernel may keep pages back once it was answered
	maxCuts = 1024            // of more, the oldest are left out
)

func (c *cuts) note(num uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = map[uint64]time.Time{}
	}
	c.last[num] = time.Now()
	if len(c.last) > maxCuts {
		c.expire()
	}
	if len(c.last) > maxCuts {
		oldest := num
		for n, at := range c.last {
			if at.Before(c.last[oldest]) {
				oldest = n
			}
		}
		delete(c.last, oldest)
	}
}

// recent gives the numbers of the files.
func (c *cuts) recent() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire()
	return slices.Collect(maps.Keys(c.last))
}

// expire forgets what was long ago. The caller holds mu.
func (c *cuts) expire() {
	maps.DeleteFunc(c.last, func(_ uint64, at time.Time) bool { return time.Since(at) > cutLong })
}

// writebacks counts the requests that write dirty pages of mappings back.
type writebacks struct{ begun, ended atomic.Uint64 }

// FlushUnseen has the kernel write back all dirty pages, where it opens files by itself. Only mappings have any, and only for as long as they last: munmap(2) and
// close(2) wait for them (fuse_vma_close and fuse_flush in fs/fuse/file.c).
func (t notifier) FlushUnseen() {
	if !t.s.noOpen {
		return
	}
	t.s.meter.note(eventFlushInode)
	if !t.s.flushMount() { // it is detached, and only those who are in it reach it
		for _, n := range t.s.nodes.files() {
			t.inode(n.Num())
		}
		return
	}
	for _, num := range t.s.cuts.recent() { // whatever the kernel keeps back of them, this waits for
		t.inode(num)
	}
}

// flushRounds is how often the requests that there are have to be answered at most, where programs go on to dirty pages: in the first round those on their way are, but for
// such as the kernel keeps back while there are maxBackground of them, or while somebody waits for the others of the same file, as close(2) does.
const flushRounds = 8

// flushPause is between two of them.
const flushPause = 50 * time.Microsecond

// flushMount is syncfs(2) of the mount: when that returns all dirty pages are on their way, but no kernel waits for what FUSE has of them. So it has the requests
// answered that there are, until none of these was to write back. It is not for a request, as it makes some itself.
func (s *filesystem) flushMount() bool {
	fd, err := unix.Open(s.mountpoint, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Dev != s.device || unix.Syncfs(fd) != nil {
		return false
	}
	nudge := func() {
		var fs unix.Statfs_t
		_ = unix.Fstatfs(fd, &fs) // which the kernel always asks for
	}
	for range flushRounds {
		ended := s.writebacks.ended.Load()
		if s.settle(nudge) < maxBackground && s.writebacks.begun.Load() == ended {
			break
		}
		nap(flushPause) // who has waited for these may have to go on before there are others
	}
	return true
}

// opensReason says why the kernel has to ask for opens; "" is that it need not.
func (s *filesystem) opensReason(o Options) string {
	switch {
	case !o.InPlace:
		return "files can change that the kernel is not told of"
	case o.OpenRequests:
		return "it is switched off"
	case o.NoSingleReader:
		return "without a single reader it can't be known when dirty pages have been written"
	case o.Passthrough && !o.NoPassthrough && s.passthroughObstacle() == "":
		return "files are served past the daemon, which takes an open"
	}
	return ""
}

// deviceNumber gives the device of what is mounted at a path, without a request to it.
func deviceNumber(path string) (uint64, error) {
	device, err := deviceOf(path)
	if err != nil {
		return 0, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(device, "%d:%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("device %q: %w", device, err)
	}
	return unix.Mkdev(major, minor), nil
}
