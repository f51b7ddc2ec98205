package fs

import (
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// backingFiles registers files underneath with the kernel, so that reads, writes and mappings go straight to them.
type backingFiles interface {
	RegisterBackingFd(*fuse.BackingMap) (int32, syscall.Errno)
	UnregisterBackingFd(id int32) syscall.Errno
}

// passthrough reports whether an open may ask for it.
func (t *openInodes) passthrough() bool { return t.on.Load() }

// turnOff ends passthrough for inodes that are opened from now on.
func (t *openInodes) turnOff(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on.Store(false)
	t.reason = reason
}

func (t *openInodes) why() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reason
}

// register gives the kernel the file underneath. What it was opened for does not matter: the kernel opens it again, with
// the daemon's rights, for each open file, as that was opened (backing_file_open in fs/backing-file.c). It fails for a file on
// another filesystem that is stacked too deep. The caller holds oi.mu.
func (t *openInodes) register(oi *openInode, h overlay.File) bool {
	id, errno := t.s.kernel.RegisterBackingFd(&fuse.BackingMap{Fd: int32(h.Fd())})
	if errno != 0 {
		return false
	}
	oi.backing, oi.mode = id, ioPassthrough
	return true
}

func (t *openInodes) unregister(oi *openInode) {
	if oi.mode == ioPassthrough {
		t.s.kernel.UnregisterBackingFd(oi.backing)
		oi.backing = 0
	}
}

// onlyOurs reports whether fd, which is open for writing, is all that the file underneath is open with: that is when the kernel grants a
// write lease (fcntl(2), F_SETLEASE; check_conflicting_open in fs/locks.c), as a shared mapping counts as an open file. The lease
// lasts for a moment only; an open of the file underneath that comes right then waits for its end.
func (t *openInodes) onlyOurs(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return err == nil
}

// overlayfsMagic is OVERLAYFS_SUPER_MAGIC of linux/magic.h.
const overlayfsMagic = 0x794c7630

// passthroughObstacle says what is known to stand in the way of passthrough before there is a mount.
func (s *filesystem) passthroughObstacle() string {
	if st, err := s.main.Statfs(); err != nil || st.Type == overlayfsMagic {
		// A mapping of a file on overlayfs holds the file of a layer, so that linger would not see it.
		return "the workspace is on overlayfs, where it cannot be known how long a file is mapped"
	}
	if !mayRegister() {
		return refusal(syscall.EPERM)
	}
	return ""
}

// mayRegister reports whether the daemon has CAP_SYS_ADMIN outside of user namespaces, as FUSE_DEV_IOC_BACKING_OPEN asks for (fs/fuse/passthrough.c).
func mayRegister() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil || data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return false
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"})
}

// tryPassthrough finds out whether passthrough works, with a file that has no name in the workspace, and turns it on.
func (t *openInodes) tryPassthrough() {
	if reason := t.obstacle(); reason != "" {
		t.turnOff(reason)
		return
	}
	t.on.Store(true)
}

// obstacle says what stands in the way of passthrough, or nothing.
func (t *openInodes) obstacle() string {
	if why := t.s.passthroughObstacle(); why != "" {
		return why
	}
	tree := t.s.main
	n, h, _, err := tree.Tmpfile(tree.root, unix.O_RDWR, 0o600, false, nil)
	if err != nil {
		return "it cannot be tried, as there can be no file without a name in the workspace: " + err.Error()
	}
	defer tree.Forget(n, 1)
	defer h.Release()
	id, errno := t.s.kernel.RegisterBackingFd(&fuse.BackingMap{Fd: int32(h.Fd())})
	if errno != 0 {
		return refusal(errno)
	}
	t.s.kernel.UnregisterBackingFd(id)
	if !t.onlyOurs(h.Fd()) {
		return "the filesystem underneath has no leases, without which it cannot be known how long a file is mapped"
	}
	return ""
}

// refusal says why the kernel registers no file.
func refusal(errno syscall.Errno) string {
	switch errno {
	case syscall.EPERM:
		return "the daemon has no CAP_SYS_ADMIN"
	case syscall.EOPNOTSUPP, syscall.ENOTTY, syscall.ENOSYS, syscall.EINVAL:
		return "the kernel has no FUSE passthrough (since Linux 6.9, with CONFIG_FUSE_PASSTHROUGH)"
	case syscall.ELOOP:
		return "the filesystem underneath is stacked on another one"
	}
	return errno.Error()
}
