package nt

import (
	"errors"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Query asks for a structure of a fixed size about an open file, by a class of GetFileInformationByHandleEx.
func Query[T any](h windows.Handle, class uint32, out *T) error {
	return windows.GetFileInformationByHandleEx(h, class, (*byte)(unsafe.Pointer(out)), uint32(unsafe.Sizeof(*out)))
}

// set changes something about an open file, by a structure and a class of NtSetInformationFile. It gives the status as it is.
func set[T any](h windows.Handle, class uint32, in *T) error {
	return windows.NtSetInformationFile(h, &windows.IO_STATUS_BLOCK{}, (*byte)(unsafe.Pointer(in)), uint32(unsafe.Sizeof(*in)), class)
}

// Basic is FILE_BASIC_INFORMATION, its times in units of 100 ns since 1601.
type Basic struct {
	Creation, Access, Write, Change int64
	Attributes                      uint32
	_                               uint32
}

// BasicOf gives times and attributes of an open file.
func BasicOf(h windows.Handle) (b Basic, err error) { return b, Query(h, windows.FileBasicInfo, &b) }

// SetBasic sets times and attributes of an open file. What is 0 stays as it is.
func SetBasic(h windows.Handle, b Basic) error {
	return plain(set(h, windows.FileBasicInformation, &b))
}

// SetAttributes sets those attributes that can be set. That none is to be there is no reason to leave them.
func SetAttributes(h windows.Handle, attributes uint32) error {
	return SetBasic(h, Basic{Attributes: Settable(attributes)})
}

// Settable leaves of attributes what SetBasic may set, so that it is never 0.
func Settable(attributes uint32) uint32 {
	attributes &= windows.FILE_ATTRIBUTE_READONLY | windows.FILE_ATTRIBUTE_HIDDEN | windows.FILE_ATTRIBUTE_SYSTEM |
		windows.FILE_ATTRIBUTE_ARCHIVE | windows.FILE_ATTRIBUTE_NOT_CONTENT_INDEXED | windows.FILE_ATTRIBUTE_TEMPORARY |
		windows.FILE_ATTRIBUTE_OFFLINE
	if attributes == 0 {
		return windows.FILE_ATTRIBUTE_NORMAL
	}
	return attributes
}

// plain makes an error that package errors knows of a status.
func plain(err error) error {
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

// IsMissing reports whether an error says that a name is not there, or is no directory where one was wanted.
func IsMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, windows.ERROR_DIRECTORY) || errors.Is(err, windows.ERROR_DELETE_PENDING)
}

// IsDenied reports whether an error says that this user, or anybody at the moment, may not do that.
func IsDenied(err error) bool { return errors.Is(err, windows.ERROR_ACCESS_DENIED) }

// IsInUse reports whether an error says that another program has a file open in a way that forbids what was tried.
func IsInUse(err error) bool {
	return errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_USER_MAPPED_FILE) ||
		errors.Is(err, windows.ERROR_LOCK_VIOLATION)
}

// unknownClass reports whether an error says that the system or the filesystem does not know such a request.
func unknownClass(err error) bool {
	switch err {
	case windows.STATUS_INVALID_INFO_CLASS, windows.STATUS_INVALID_PARAMETER, windows.STATUS_NOT_SUPPORTED,
		windows.STATUS_NOT_IMPLEMENTED, windows.STATUS_INVALID_DEVICE_REQUEST:
		return true
	}
	return false
}
