package fs

import (
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// status gives the errno that a program sees for err: the one in its chain, ENOSPC where the store is full, else EIO.
// ENOSYS of the lower becomes EOPNOTSUPP, as it would make the kernel never ask for the like again.
func status(err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	e, ok := err.(syscall.Errno)
	if ok || errors.As(err, &e) && e != 0 {
		if e == syscall.ENOSYS {
			e = syscall.EOPNOTSUPP
		}
		return fuse.Status(e)
	}
	if errs.CodeOf(err) == errs.Capacity {
		return fuse.Status(syscall.ENOSPC)
	}
	return fuse.EIO
}
