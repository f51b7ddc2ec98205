package strategy

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// clone makes the bytes of dst those of src, as ioctl_ficlone(2) has it: all of src, with its holes, sharing its blocks.
// dst keeps what it has behind the size of src.
func clone(dst, src file) error {
	_, err := retry(func() (int, error) { return 0, unix.IoctlFileClone(dst.fd, src.fd) })
	return os.NewSyscallError("FICLONE", err)
}

// noClone are the answers that mean "not with these two files", as opposed to a clone that failed.
var noClone = []error{
	unix.EXDEV, unix.EOPNOTSUPP, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.ETXTBSY, unix.EPERM,
}

// cannotClone says whether err of clone leaves hope that copying works.
func cannotClone(err error) bool {
	sys, ok := err.(*os.SyscallError)
	return ok && sys.Syscall == "FICLONE" && slices.Contains(noClone, sys.Err)
}
