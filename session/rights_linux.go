package session

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// sandboxCaps are what root keeps in a sandbox: to treat files and processes in it as root does. None of them is worth anything outside
// of its user namespace. Above all MKNOD, SYS_ADMIN, SYS_PTRACE and DAC_READ_SEARCH, which opens files by handle past all mounts, are not there.
var sandboxCaps = []int{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID,
	unix.CAP_SETUID, unix.CAP_NET_BIND_SERVICE}

// restrict gives up, on this thread, what the command must not have. What only the helper's user namespace gave goes in any case: the
// command has the rights of the caller.
func (h helper) restrict() error {
	if h.User {
		keep := []int(nil)
		switch {
		case os.Geteuid() == 0 && h.Sandbox != nil:
			keep = sandboxCaps
		case os.Geteuid() == 0:
			return nil // root who had too few rights to begin with: has those of the user namespace over what is in it
		}
		if err := dropCapabilities(keep); err != nil {
			return unsupported("rights cannot be given up", err)
		}
	}
	if h.Sandbox == nil {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return unsupported("setuid programs cannot be forbidden", err)
	}
	if err := refuseDirectories(); err != nil {
		return err
	}
	if err := h.landlock(); err != nil {
		return err
	}
	return forbidTyping()
}

// dropCapabilities leaves this thread, and what it starts, only those in keep.
func dropCapabilities(keep []int) error {
	var kept uint64
	for _, c := range keep {
		kept |= 1 << c
	}
	for c := 0; c < 64; c++ {
		if kept&(1<<c) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err == unix.EINVAL {
			break // the kernel knows no more
		}
		if err != nil {
			return os.NewSyscallError("prctl", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	data, err := capabilities()
	if err != nil {
		return os.NewSyscallError("capget", err)
	}
	for i := range data {
		mask := uint32(kept >> (32 * i))
		data[i].Effective &= mask
		data[i].Permitted &= mask
		data[i].Inheritable = 0
	}
	return os.NewSyscallError("capset", unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]))
}

// Rights of Landlock that change something, by the version that brought them. REFER, which moves between directories, came with the
// second: the first forbids such moves altogether, and is of no use.
const (
	landlockWrite2 = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
	landlockWrite3 = unix.LANDLOCK_ACCESS_FS_TRUNCATE
	landlockWrite9 = unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX

	// landlockFile are those of them that a rule for a file may have.
	landlockFile = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// landlock is the sandbox's second wall, where the kernel has it: the mounts alone let a file be written to that was passed on
// for reading, by /proc/self/fd, and let sockets without a name be used. Where it is missing such files are refused.
func (h helper) landlock() error {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || abi < 2 {
		return refuseFiles()
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: landlockWrite2}
	size := unsafe.Offsetof(attr.Handled_access_net) // an older kernel takes no more than it knows
	if abi >= 3 {
		attr.Handled_access_fs |= landlockWrite3
	}
	if abi >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
		size = unsafe.Offsetof(attr.Quiet_access_fs)
	}
	if abi >= 9 {
		attr.Handled_access_fs |= landlockWrite9
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return unsupported("Landlock", errno)
	}
	defer unix.Close(int(fd))
	if err := h.allow(int(fd), attr.Handled_access_fs); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return unsupported("Landlock", errno)
	}
	return nil
}

// allow adds the rules for what the mounts let be written to, and for the streams.
func (h helper) allow(ruleset int, all uint64) error {
	for _, path := range h.writable() {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT {
			continue // a device that this system does not have; all else was there when it was mounted
		}
		if err != nil {
			return errs.Wrap(errs.Path, op, path, err)
		}
		err = allowBelow(ruleset, fd, all)
		unix.Close(fd)
		if err != nil {
			return errs.New(errs.Unsupported, op, path, "Landlock: %w", err)
		}
	}
	for fd := range 3 {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY {
			_ = allowBelow(ruleset, fd, all) // a pipe or a socket needs no rule, and gets none
		}
	}
	return nil
}

func allowBelow(ruleset, fd int, rights uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= landlockFile
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// refuseDirectories fails if a stream is a directory: what is below could be reached from there, past all mounts.
func refuseDirectories() error {
	for fd := range 3 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return invalid("", "a standard stream is a directory, which leads out of a sandbox")
		}
	}
	return nil
}

// refuseFiles fails if a stream is a file that was opened for reading: /proc/self/fd would open it for writing.
func refuseFiles() error {
	for fd := range 3 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY {
			return errs.New(errs.Unsupported, op, "", "a standard stream is a file, which this kernel cannot keep the command from writing to").
				WithHint("use a pipe: cat FILE | hyperfs exec --sandbox …")
		}
	}
	return nil
}
