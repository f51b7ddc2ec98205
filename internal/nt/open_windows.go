package nt

import (
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// How others may have a file open at the same time.
const (
	ShareAll      = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	ShareNoWriter = windows.FILE_SHARE_READ | windows.FILE_SHARE_DELETE
)

// Attributes is the access that is enough to ask for attributes. It is never refused because of what others do.
const Attributes = windows.FILE_READ_ATTRIBUTES | windows.SYNCHRONIZE

// Through, among the options of Open, opens what a reparse point makes of the name.
const Through = 1 << 31

// badInName are characters that would lead out of a directory, or to a stream of a file.
const badInName = "\\/:\x00"

// checkName refuses what is no name of a directory entry.
func checkName(name string) error {
	if strings.ContainsAny(name, badInName) || name == "." || name == ".." {
		return windows.ERROR_INVALID_NAME
	}
	return nil
}

// Open opens or makes a name in the directory at, as NtCreateFile has it; an empty name opens at itself once more. Unless
// it is told to go Through, it follows no reparse point.
func Open(at windows.Handle, name string, access, share, disposition, options uint32) (windows.Handle, error) {
	if err := checkName(name); err != nil {
		return 0, err
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
	if options&Through == 0 {
		options |= windows.FILE_OPEN_REPARSE_POINT
	}
	options = options&^Through | windows.FILE_OPEN_FOR_BACKUP_INTENT | windows.FILE_SYNCHRONOUS_IO_NONALERT
	var h windows.Handle
	err = windows.NtCreateFile(&h, access|windows.SYNCHRONIZE, &oa, &windows.IO_STATUS_BLOCK{}, nil,
		windows.FILE_ATTRIBUTE_NORMAL, share, disposition, options, 0, 0)
	runtime.KeepAlive(chars)
	return h, plain(err)
}

// With opens a name that is there, calls fn with it and closes it.
func With(at windows.Handle, name string, access, share, options uint32, fn func(h windows.Handle) error) error {
	h, err := Open(at, name, access, share, windows.FILE_OPEN, options)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	return fn(h)
}

// Names gives the names in an open directory, unsorted. buf is where it reads them to; larger is faster.
func Names(h windows.Handle, buf []byte) ([]string, error) {
	var names []string
	for class := uint32(windows.FileFullDirectoryRestartInfo); ; class = windows.FileFullDirectoryInfo {
		err := windows.GetFileInformationByHandleEx(h, class, &buf[0], uint32(len(buf)))
		if err == windows.ERROR_NO_MORE_FILES {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		names = appendNames(names, buf)
	}
}

// fullDirInfo is FILE_FULL_DIR_INFO. The name follows.
type fullDirInfo struct {
	next       uint32
	index      uint32
	times      [4]int64
	end, alloc int64
	attributes uint32
	nameLength uint32 // bytes
	eaSize     uint32
	name       [1]uint16
}

// appendNames adds the names of a part of a listing.
func appendNames(names []string, buf []byte) []string {
	for {
		info := (*fullDirInfo)(unsafe.Pointer(&buf[0]))
		chars := unsafe.Slice(&info.name[0], info.nameLength/2)
		if name := syscall.UTF16ToString(chars); name != "." && name != ".." {
			names = append(names, name)
		}
		if info.next == 0 {
			return names
		}
		buf = buf[info.next:]
	}
}
