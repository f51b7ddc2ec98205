package fs

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// connectionsPath is where distributions mount what tells of FUSE mounts, to their owners and root.
const connectionsPath = "/sys/fs/fuse/connections"

// fusectlMagic is FUSE_CTL_SUPER_MAGIC of fs/fuse/control.c.
const fusectlMagic = 0x65735543

// openConnections opens that directory. Where it is not mounted root can do without.
func openConnections() (int, error) {
	fd, err := unix.Open(connectionsPath, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		var st unix.Statfs_t
		if unix.Fstatfs(fd, &st) == nil && st.Type == fusectlMagic {
			return fd, nil
		}
		_ = unix.Close(fd)
	}
	ctx, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, err
	}
	return unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0)
}

// writebacks are the inodes whose dirty pages are being written back.
type writebacks struct {
	mu     sync.Mutex
	active map[overlay.Inode]int  // guarded by mu
	late   map[overlay.Inode]bool // that were since collect was asked; nil while nobody asks; guarded by mu
}

func (w *writebacks) begin(n overlay.Inode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active == nil {
		w.active = map[overlay.Inode]int{}
	}
	w.active[n]++
	if w.late != nil {
		w.late[n] = true
	}
}

func (w *writebacks) end(n overlay.Inode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active[n]--; w.active[n] == 0 {
		delete(w.active, n)
	}
}

// collect gives what was written back since it was asked last, and what is being.
func (w *writebacks) collect() (nodes []overlay.Inode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.active {
		nodes = append(nodes, n)
	}
	for n := range w.late {
		if w.active[n] == 0 {
			nodes = append(nodes, n)
		}
	}
	w.late = map[overlay.Inode]bool{}
	return nodes
}

// FlushUnseen has the kernel write back all dirty pages, where it opens files by itself. Only mappings have any, and only for as long as they last: munmap(2) and
// close(2) wait for them (fuse_vma_close and fuse_flush in fs/fuse/file.c).
func (t notifier) FlushUnseen() {
	if !t.s.noOpen {
		return
	}
	t.s.flushing.Lock()
	defer t.s.flushing.Unlock()
	t.s.meter.note(eventFlushInode)
	if !t.s.beginFlush() { // it is detached, and only those who are in it reach it
		for _, n := range t.s.nodes.files() {
			t.inode(n)
		}
		return
	}
	t.s.awaitFlush(t)
}

// beginFlush is syncfs(2) of the mount: when it returns, all dirty pages are on their way. No kernel waits for what FUSE has of them.
func (s *filesystem) beginFlush() bool {
	fd, err := unix.Open(s.mountpoint, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Dev == s.device && unix.Syncfs(fd) == nil
}

// flushPatience is how long awaitFlush waits for a moment without any request, and flushPause how long nothing must be written back if there is none.
const (
	flushPatience = 10 * time.Millisecond
	flushPause    = 2 * time.Millisecond
)

// awaitFlush waits until nothing is on its way: certainly so when the kernel has no request under way at all. Where programs leave no such moment, it has the
// kernel wait for each inode that it sees being written back, until it has seen none for a while.
func (s *filesystem) awaitFlush(t notifier) {
	for since := time.Now(); time.Since(since) < flushPatience; {
		if s.waiting() == 0 {
			return
		}
	}
	s.writebacks.collect()
	for quiet := 0; quiet < 3; quiet++ {
		time.Sleep(flushPause)
		for _, n := range s.writebacks.collect() {
			quiet = 0
			t.inode(n)
		}
	}
}

// waiting gives how many requests the kernel has under way, read by the daemon or not; -1 where it does not say.
func (s *filesystem) waiting() int {
	fd, err := unix.Openat(s.connections, s.waitingName, unix.O_RDONLY|unix.O_CLOEXEC, 0) // which can be read once only
	if err != nil {
		return -1
	}
	defer unix.Close(fd)
	var b [32]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return -1
	}
	count, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return -1
	}
	return count
}

// decideOpens settles whether the kernel asks for opens, before it is told; and if so, says why.
func (s *filesystem) decideOpens(o Options, tree *overlay.Tree) (why string) {
	switch {
	case !o.InPlace:
		return "files can change that the kernel is not told of"
	case o.OpenRequests:
		return "it is switched off"
	case o.Passthrough && !o.NoPassthrough && s.passthroughObstacle() == "":
		return "files are served past the daemon, which takes an open"
	}
	fd, err := openConnections()
	if err != nil {
		return connectionsPath + " is not mounted, without which it can't be known when dirty pages were written"
	}
	s.connections, s.noOpen = fd, true
	tree.OpensUnseen()
	return ""
}

// findConnection finds out what the kernel calls a mount that it need not ask for opens.
func (s *filesystem) findConnection(mountpoint string) error {
	if !s.noOpen {
		return nil
	}
	device, err := deviceOf(mountpoint)
	if err != nil {
		return mountError(mountpoint, err)
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(device, "%d:%d", &major, &minor); err != nil {
		return mountError(mountpoint, err)
	}
	s.mountpoint, s.device = mountpoint, unix.Mkdev(major, minor)
	s.waitingName = strconv.FormatUint(uint64(minor), 10) + "/waiting"
	if s.waiting() < 0 {
		return mountError(mountpoint, fmt.Errorf("%s/%s can't be read", connectionsPath, s.waitingName))
	}
	return nil
}

// closeConnection gives back what decideOpens and findConnection have opened.
func (s *filesystem) closeConnection() {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	if s.connections >= 0 {
		_ = unix.Close(s.connections)
	}
	s.connections = -1
}
