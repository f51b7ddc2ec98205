package strategy

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// duplicateExtents is DUPLICATE_EXTENTS_DATA.
type duplicateExtents struct {
	source               windows.Handle
	sourceOffset, offset int64
	count                int64
}

// cloneMost is how many bytes are cloned at once: less than 4 GiB, and a multiple of all cluster sizes.
const cloneMost = 1 << 30

// clone makes the bytes of dst those of src by FSCTL_DUPLICATE_EXTENTS_TO_FILE, which ReFS has: all of src, sharing its
// clusters. dst keeps what it has behind the size of src.
func clone(dst, src file) error {
	st, err := src.stat()
	if err != nil {
		return err
	}
	is, err := dst.stat()
	if err != nil {
		return err
	}
	if err := matchSparse(dst, src); err != nil {
		return os.NewSyscallError(cloneCall, err)
	}
	if is.size < st.size { // the region must be there
		if err := resize(dst, st.size); err != nil {
			return err
		}
	}
	// A region is whole clusters, the last one of the file included. ReFS has clusters of 4 KiB or of 64.
	for _, cluster := range []int64{4 << 10, 64 << 10} {
		if err = cloneAll(dst, src, st.size, cluster); err == nil || !errors.Is(err, windows.ERROR_INVALID_PARAMETER) {
			break
		}
	}
	return os.NewSyscallError(cloneCall, err)
}

const cloneCall = "FSCTL_DUPLICATE_EXTENTS_TO_FILE"

func cloneAll(dst, src file, size, cluster int64) error {
	if size == 0 {
		// Whether it could be cloned is still to be found out.
		return cloneRange(dst, src, 0, 0)
	}
	for at := int64(0); at < size; at += cloneMost {
		count := min(size-at, cloneMost)
		if err := cloneRange(dst, src, at, (count+cluster-1)/cluster*cluster); err != nil {
			return err
		}
	}
	return nil
}

func cloneRange(dst, src file, at, count int64) error {
	in, n := duplicateExtents{windows.Handle(src.Fd()), at, at, count}, uint32(0)
	return windows.DeviceIoControl(windows.Handle(dst.Fd()), windows.FSCTL_DUPLICATE_EXTENTS_TO_FILE,
		(*byte)(unsafe.Pointer(&in)), uint32(unsafe.Sizeof(in)), nil, 0, &n, nil)
}

// matchSparse makes dst sparse where src is, as a clone demands.
func matchSparse(dst, src file) error {
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(src.Fd()), &info); err != nil {
		return err
	}
	if info.FileAttributes&windows.FILE_ATTRIBUTE_SPARSE_FILE == 0 {
		return nil
	}
	var n uint32
	return windows.DeviceIoControl(windows.Handle(dst.Fd()), windows.FSCTL_SET_SPARSE, nil, 0, nil, 0, &n, nil)
}

// cannotClone says whether err of clone leaves hope that copying works: only a lack of space leaves none.
func cannotClone(err error) bool {
	var sys *os.SyscallError
	return errors.As(err, &sys) && sys.Syscall == cloneCall && !noSpace(err)
}
