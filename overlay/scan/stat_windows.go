package scan

import (
	"errors"
	"math"
	"os"
	"unsafe"

	"github.com/cespare/xxhash/v2"
	"github.com/hyperfs/hyperfs/internal/nt"
	"golang.org/x/sys/windows"
)

// The mode of an entry has in its upper half the file attributes that a user can set, and below what stat(2) would say
// of them: whether the owner may write is all that there is.
const (
	attributeShift = 16
	attributesKept = windows.FILE_ATTRIBUTE_READONLY | windows.FILE_ATTRIBUTE_HIDDEN | windows.FILE_ATTRIBUTE_SYSTEM |
		windows.FILE_ATTRIBUTE_ARCHIVE | windows.FILE_ATTRIBUTE_NOT_CONTENT_INDEXED
)

// Values of stat.rdev for what has the kind of a symlink.
const (
	linkToDir     = 2 << iota // it says of itself that it leads to a directory
	linkElsewhere             // a reparse point of some other kind that stands for another name
)

// standard is FILE_STANDARD_INFO.
type standard struct {
	allocation, end int64
	links           uint32
	deleted, isDir  bool
	_               [2]byte
}

// fileID is FILE_ID_INFO.
type fileID struct {
	volume uint64
	id     [16]byte
}

// tagInfo is FILE_ATTRIBUTE_TAG_INFO.
type tagInfo struct{ attributes, tag uint32 }

// stat looks at a name. Where somebody has a file open for writing its ctime is not to be known: NTFS gives a file its new
// times when that is closed.
func (d dir) stat(name string) (stat, error) {
	writer := false
	h, err := nt.Open(d.h, name, windows.FILE_READ_DATA|nt.Attributes, nt.ShareNoWriter, windows.FILE_OPEN, 0)
	if err == windows.ERROR_SHARING_VIOLATION || err == windows.ERROR_ACCESS_DENIED {
		writer = err == windows.ERROR_SHARING_VIOLATION
		h, err = nt.Open(d.h, name, nt.Attributes, nt.ShareAll, windows.FILE_OPEN, 0)
	}
	if err != nil {
		return stat{}, err
	}
	defer windows.CloseHandle(h)
	st, err := statHandle(h, d.dev)
	if writer && st.isRegular() {
		st.ctime = unknownTime
	}
	return st, err
}

func (d dir) self() (stat, error) { return statHandle(d.h, d.dev) }

func statFile(f *os.File) (stat, error) {
	h := windows.Handle(f.Fd())
	dev, err := volumeOf(h)
	if err != nil {
		return stat{}, err
	}
	return statHandle(h, dev)
}

// volumeOf gives the serial number of the volume that a file is on.
func volumeOf(h windows.Handle) (uint64, error) {
	var info windows.ByHandleFileInformation
	err := windows.GetFileInformationByHandle(h, &info)
	return uint64(info.VolumeSerialNumber), err
}

func statHandle(h windows.Handle, dev uint64) (stat, error) {
	b, err := nt.BasicOf(h)
	if err != nil {
		return stat{}, err
	}
	var s standard
	if err := nt.Query(h, windows.FileStandardInfo, &s); err != nil {
		return stat{}, err
	}
	id, err := idOf(h)
	if err != nil {
		return stat{}, err
	}
	st := stat{
		mode: modeOf(b.Attributes), nlink: max(s.links, 1), dev: dev, ino: id, mount: 1,
		mtime: unixTime(b.Write), ctime: unixTime(b.Change), birth: 1, // numbers of files are not used again: see stableBirth
	}
	if b.Change == 0 {
		st.ctime = unknownTime
	}
	if b.Attributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		if err := st.addReparse(h, b.Attributes); err != nil {
			return stat{}, err
		}
	}
	if st.isRegular() {
		st.size, st.blocks = s.end, s.allocation/512
	}
	return st, nil
}

// idOf gives the number of a file in its volume. That of NTFS has 64 bits; of the 128 that ReFS may use, a hash is taken.
func idOf(h windows.Handle) (uint64, error) {
	var id fileID
	if nt.Query(h, windows.FileIdInfo, &id) == nil {
		low := *(*uint64)(unsafe.Pointer(&id.id[0]))
		if *(*uint64)(unsafe.Pointer(&id.id[8])) == 0 {
			return low, nil
		}
		return xxhash.Sum64(id.id[:]), nil
	}
	var info windows.ByHandleFileInformation
	err := windows.GetFileInformationByHandle(h, &info)
	return uint64(info.FileIndexHigh)<<32 | uint64(info.FileIndexLow), err
}

func modeOf(attributes uint32) uint32 {
	mode := uint32(modeRegular | 0o666)
	if attributes&windows.FILE_ATTRIBUTE_DIRECTORY != 0 {
		mode = modeDir | 0o777
	}
	if attributes&windows.FILE_ATTRIBUTE_READONLY != 0 {
		mode &^= 0o222
	}
	return mode | attributes&attributesKept<<attributeShift
}

// addReparse tells what a reparse point is. Those that stand for no other name, such as a file that is compressed or kept in
// a cloud, are the file or directory that programs take them for.
func (s *stat) addReparse(h windows.Handle, attributes uint32) error {
	var t tagInfo
	if err := nt.Query(h, windows.FileAttributeTagInfo, &t); err != nil {
		return err
	}
	if !isSurrogate(t.tag) {
		return nil
	}
	s.mode = s.mode&^(modeType|0o777) | modeSymlink | 0o777
	if attributes&windows.FILE_ATTRIBUTE_DIRECTORY != 0 {
		s.rdev = linkToDir
	}
	switch t.tag {
	case windows.IO_REPARSE_TAG_SYMLINK:
	case windows.IO_REPARSE_TAG_MOUNT_POINT:
		s.rdev |= linkJunction
	default:
		s.rdev, s.mount = s.rdev|linkElsewhere, 2 // nobody here could make it again: it is left alone
	}
	return nil
}

// isSurrogate is IsReparseTagNameSurrogate.
func isSurrogate(tag uint32) bool { return tag&0x20000000 != 0 }

// behind gives the handle to work with of what h, which it may close, was opened as: a reparse point that stands for no other
// name is opened once more, as programs do. One that does is errLoop.
func (d dir) behind(h windows.Handle, name string, access, options uint32) (windows.Handle, error) {
	var t tagInfo
	err := nt.Query(h, windows.FileAttributeTagInfo, &t)
	if err == nil && t.attributes&windows.FILE_ATTRIBUTE_REPARSE_POINT == 0 {
		return h, nil
	}
	defer windows.CloseHandle(h)
	if err != nil {
		return 0, err
	}
	if isSurrogate(t.tag) {
		return 0, errLoop
	}
	behind, err := nt.Open(d.h, name, access, nt.ShareAll, windows.FILE_OPEN, options|nt.Through)
	if err != nil {
		return 0, err
	}
	if err := sameFile(h, behind); err != nil { // the name may have become a symlink just now
		windows.CloseHandle(behind)
		return 0, err
	}
	return behind, nil
}

// errLoop says that a name leads to a symlink or a junction, which nothing here follows.
var errLoop = errors.New("it is a symlink or a junction")

func sameFile(a, b windows.Handle) error {
	x, err := idOf(a)
	if err != nil {
		return err
	}
	y, err := idOf(b)
	if err == nil && x != y {
		err = errLoop
	}
	return err
}

// filetimeEpoch is 1970 in units of 100 ns since 1601.
const filetimeEpoch = 116444736000000000

// earliest is the first time that can be told in ns since 1970, in units of 100 ns since 1601.
const earliest = math.MinInt64/100 + filetimeEpoch

func unixTime(t int64) int64 { return (max(t, earliest) - filetimeEpoch) * 100 }

func fileTime(ns int64) int64 { return ns/100 + filetimeEpoch }

// hasWriter reports whether somebody has the file open for writing: then it can't be opened so that nobody may.
func hasWriter(f *os.File) bool {
	h, err := nt.Open(windows.Handle(f.Fd()), "", windows.FILE_READ_DATA, nt.ShareNoWriter, windows.FILE_OPEN, 0)
	if err == nil {
		windows.CloseHandle(h)
	}
	return err == windows.ERROR_SHARING_VIOLATION
}
