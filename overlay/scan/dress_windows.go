package scan

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/hyperfs/hyperfs/internal/nt"
	"golang.org/x/sys/windows"
)

// chmod has nothing to lift: rights are in access control lists, and no attribute keeps its owner from reading.
func (d dir) chmod(string, uint32) error { return nil }

func (d dir) chmodSelf(uint32) error { return nil }

// dress gives name the attributes of e and its modification time.
func (d dir) dress(name string, e *entry) error {
	return nt.With(d.h, name, windows.FILE_WRITE_ATTRIBUTES|nt.Attributes, nt.ShareAll, 0, func(h windows.Handle) error { return dressHandle(h, e) })
}

func (d dir) dressSelf(e *entry) error {
	h, err := nt.Open(d.h, "", windows.FILE_WRITE_ATTRIBUTES|nt.Attributes, nt.ShareAll, windows.FILE_OPEN, windows.FILE_DIRECTORY_FILE)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	return dressHandle(h, e)
}

func dressHandle(h windows.Handle, e *entry) error {
	is, err := nt.BasicOf(h)
	if err != nil {
		return err
	}
	attributes := is.Attributes&^attributesKept | e.mode>>attributeShift
	return nt.SetBasic(h, nt.Basic{Write: fileTime(e.mtime), Attributes: nt.Settable(attributes)})
}

// special makes a symlink, a junction or an empty file.
func (d dir) special(name string, e *entry) error {
	if e.kind() == modeRegular {
		h, err := nt.Open(d.h, name, windows.FILE_WRITE_DATA, nt.ShareAll, windows.FILE_CREATE, windows.FILE_NON_DIRECTORY_FILE)
		if err != nil {
			return err
		}
		return windows.CloseHandle(h)
	}
	options := uint32(windows.FILE_NON_DIRECTORY_FILE)
	if e.rdev&linkToDir != 0 {
		options = windows.FILE_DIRECTORY_FILE
	}
	h, err := nt.Open(d.h, name, windows.FILE_WRITE_ATTRIBUTES|windows.DELETE, nt.ShareAll, windows.FILE_CREATE, options)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	err = setReparse(h, reparse{e.target, e.rdev&linkJunction != 0})
	if err != nil {
		_ = nt.Delete(h)
	}
	return err
}

// makeable reports whether special can make such a thing.
func makeable(e *entry) bool {
	return e.isRegular() || e.kind() == modeSymlink && e.rdev&linkElsewhere == 0
}

func setReparse(h windows.Handle, r reparse) error {
	if !r.junction {
		allowSymlinks()
	}
	buf, err := r.encode()
	if err != nil {
		return err
	}
	var n uint32
	return windows.DeviceIoControl(h, windows.FSCTL_SET_REPARSE_POINT, &buf[0], uint32(len(buf)), nil, 0, &n, nil)
}

// allowSymlinks lets this process use its right to make symlinks, which administrators have and must ask for. In Developer
// Mode everybody can make them without.
var allowSymlinks = sync.OnceFunc(func() {
	var token windows.Token
	if windows.OpenProcessToken(windows.CurrentProcess(), windows.TOKEN_ADJUST_PRIVILEGES|windows.TOKEN_QUERY, &token) != nil {
		return // making a symlink says why it can't be
	}
	defer token.Close()
	privileges := windows.Tokenprivileges{PrivilegeCount: 1}
	privileges.Privileges[0].Attributes = windows.SE_PRIVILEGE_ENABLED
	name := windows.StringToUTF16Ptr("SeCreateSymbolicLinkPrivilege")
	if windows.LookupPrivilegeValue(nil, name, &privileges.Privileges[0].Luid) == nil {
		_ = windows.AdjustTokenPrivileges(token, false, &privileges, 0, nil, nil)
	}
})

// readlink gives the target as the filesystem keeps it.
func (d dir) readlink(name string) (target string, err error) {
	err = nt.With(d.h, name, nt.Attributes, nt.ShareAll, 0, func(h windows.Handle) error {
		buf := make([]byte, windows.MAXIMUM_REPARSE_DATA_BUFFER_SIZE)
		var n uint32
		if err := windows.DeviceIoControl(h, windows.FSCTL_GET_REPARSE_POINT, nil, 0, &buf[0], uint32(len(buf)), &n, nil); err != nil {
			return err
		}
		r, err := decodeReparse(buf[:n])
		if err != nil {
			return err
		}
		target = r.target
		return nil
	})
	return target, err
}

// mayOwn is always so: files have no user and group here.
func mayOwn(uint32, uint32) bool { return true }

// owns leaves it to the attempt: who may change a file is in its access control list.
func owns(*stat) bool { return true }

// privileged says that nothing is to be gained by lifting modes.
func privileged() bool { return true }

// stableBirth reports whether a file's number alone tells it from every other one that the volume ever had, so that stat.birth may
// be a constant: it is so where a file can be opened by it. Creation times tell less: a program can set them, and a new
// file gets that of one which had its name a moment ago.
func stableBirth(d dir) bool {
	var flags uint32
	err := windows.GetVolumeInformationByHandle(d.h, nil, 0, nil, nil, &flags, nil, 0)
	return err == nil && flags&windows.FILE_SUPPORTS_OPEN_BY_FILE_ID != 0
}

// foldsCase reports whether two names in d that differ in case alone are one.
func foldsCase(d dir) bool {
	var flags uint32
	err := windows.NtQueryInformationFile(d.h, &windows.IO_STATUS_BLOCK{}, (*byte)(unsafe.Pointer(&flags)), 4, windows.FileCaseSensitiveInformation)
	return err != nil || flags&1 == 0
}

// isMissing reports whether an error says that a name is not there, or leads to something else than it did.
func isMissing(err error) bool { return nt.IsMissing(err) || errors.Is(err, errLoop) }

func isDenied(err error) bool { return nt.IsDenied(err) }

func isInUse(err error) bool { return nt.IsInUse(err) }
