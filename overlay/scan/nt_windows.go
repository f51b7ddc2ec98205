package scan

import (
	"errors"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Calls of ntdll that open a name relative to the handle of a directory: so nobody can lead them elsewhere by replacing a
// directory above, and no path is longer than a name.

const (
	shareAll      = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	shareNoWriter = windows.FILE_SHARE_READ | windows.FILE_SHARE_DELETE

	readAttributes = windows.FILE_READ_ATTRIBUTES | windows.SYNCHRONIZE
)

// errLoop says that a name leads to a symlink or a junction, which nothing here follows.
var errLoop = errors.New("it is a symlink or a junction")

// badInName are characters that would lead out of a directory, or to a stream of a file.
const badInName = "\\/:\x00"

// through, among the options of ntOpen, opens what a reparse point makes of the name.
const through = 1 << 31

// ntOpen opens or makes a name in the directory at; an empty name opens at itself once more. Unless it is told to go
// through, it follows no reparse point.
func ntOpen(at windows.Handle, name string, access, share, disposition, options uint32) (windows.Handle, error) {
	if strings.ContainsAny(name, badInName) || name == "." || name == ".." {
		return 0, windows.ERROR_INVALID_NAME
	}
	chars, err := syscall.UTF16FromString(name)
	if err != nil {
		return 0, err
	}
	length := uint16(2 * (len(chars) - 1))
	oa := windows.OBJECT_ATTRIBUTES{
		RootDirectory: at,
		ObjectName:    &windows.NTUnicodeString{Length: length, MaximumLength: length + 2, Buffer: &chars[0]},
		Attributes:    windows.OBJ_CASE_INSENSITIVE,
	}
	oa.Length = uint32(unsafe.Sizeof(oa))
	var h windows.Handle
	if options&through == 0 {
		options |= windows.FILE_OPEN_REPARSE_POINT
	}
	options = options&^through | windows.FILE_OPEN_FOR_BACKUP_INTENT | windows.FILE_SYNCHRONOUS_IO_NONALERT
	err = windows.NtCreateFile(&h, access|windows.SYNCHRONIZE, &oa, &windows.IO_STATUS_BLOCK{}, nil,
		windows.FILE_ATTRIBUTE_NORMAL, share, disposition, options, 0, 0)
	runtime.KeepAlive(chars)
	return h, plainStatus(err)
}

// plainStatus makes an error that package errors knows of a status.
func plainStatus(err error) error {
	status, ok := err.(windows.NTStatus)
	switch {
	case !ok:
		return err
	case status == windows.STATUS_DELETE_PENDING: // its last name is gone
		return windows.ERROR_FILE_NOT_FOUND
	case status == windows.STATUS_NOT_A_DIRECTORY:
		return windows.ERROR_DIRECTORY
	case status == windows.STATUS_OBJECT_NAME_COLLISION:
		return windows.ERROR_FILE_EXISTS
	}
	return status.Errno()
}

// with opens a name, calls fn with it and closes it.
func (d dir) with(name string, access, share, options uint32, fn func(h windows.Handle) error) error {
	h, err := ntOpen(d.h, name, access, share, windows.FILE_OPEN, options)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	return fn(h)
}

// query asks for a fixed structure about an open file.
func query[T any](h windows.Handle, class uint32, out *T) error {
	return windows.GetFileInformationByHandleEx(h, class, (*byte)(unsafe.Pointer(out)), uint32(unsafe.Sizeof(*out)))
}

// set changes something about an open file, by a structure of the kernel's.
func set[T any](h windows.Handle, class uint32, in *T) error {
	return windows.NtSetInformationFile(h, &windows.IO_STATUS_BLOCK{}, (*byte)(unsafe.Pointer(in)), uint32(unsafe.Sizeof(*in)), class)
}

// unknownClass reports whether an error says that the system or the filesystem does not know such a request.
func unknownClass(err error) bool {
	return err == windows.STATUS_INVALID_INFO_CLASS || err == windows.STATUS_INVALID_PARAMETER ||
		err == windows.STATUS_NOT_SUPPORTED || err == windows.STATUS_NOT_IMPLEMENTED || err == windows.STATUS_INVALID_DEVICE_REQUEST
}

// nameInformation is FILE_RENAME_INFORMATION and FILE_LINK_INFORMATION, which are alike.
type nameInformation struct {
	flags    uint32 // in the older form a byte: replace what is there
	root     windows.Handle
	length   uint32 // bytes
	fileName [windows.MAX_PATH]uint16
}

// The classes that x/sys does not have.
const (
	fileRenameInformationEx = 65
	fileLinkInformation     = 11
)

func newNameInformation(to dir, name string) (*nameInformation, error) {
	if strings.ContainsAny(name, badInName) {
		return nil, windows.ERROR_INVALID_NAME
	}
	chars, err := syscall.UTF16FromString(name)
	if err != nil {
		return nil, err
	}
	n := &nameInformation{root: to.h, length: uint32(2 * (len(chars) - 1))}
	if len(chars) > len(n.fileName) {
		return nil, windows.ERROR_FILENAME_EXCED_RANGE
	}
	copy(n.fileName[:], chars)
	return n, nil
}
