//go:build linux

package overlay

import (
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// procPath names what a descriptor refers to, also one opened with O_PATH. Calls that follow it reach that very inode,
// a symlink too.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func ignoringEINTR(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}

// utimesFd is utimensat with AT_EMPTY_PATH, which x/sys has no function for; it takes O_PATH descriptors since Linux 5.8.
func utimesFd(fd int, ts [2]unix.Timespec) error {
	var empty [1]byte
	_, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), uintptr(unsafe.Pointer(&empty[0])),
		uintptr(unsafe.Pointer(&ts[0])), unix.AT_EMPTY_PATH, 0, 0)
	if e == 0 {
		return nil
	}
	if e == unix.EINVAL || e == unix.EBADF { // an older kernel
		return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), ts[:], 0)
	}
	return e
}

// setMtime sets the modification time and leaves the access time.
func setMtime(fd int, ns int64) error { return utimesFd(fd, [2]unix.Timespec(mtimeOnly(ns))) }

// mtimeOnly is what utimensat(2) takes for that.
func mtimeOnly(ns int64) []unix.Timespec {
	sec, nsec := ns/1e9, ns%1e9
	if nsec < 0 {
		sec, nsec = sec-1, nsec+1e9
	}
	return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: sec, Nsec: nsec}}
}

func readlinkAt(dirfd int, name string) (string, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(dirfd, name, buf)
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

// renameNoReplace fails with EEXIST where the new name exists, also as another name of the same inode.
func renameNoReplace(oldDir int, oldName string, newDir int, newName string) error {
	return unix.Renameat2(oldDir, oldName, newDir, newName, unix.RENAME_NOREPLACE)
}
