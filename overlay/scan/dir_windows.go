package scan

import (
	"os"
	"slices"
	"syscall"
	"unsafe"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/windows"
)

// dir is an open directory. Everything in it is reached by its name from here: no path is longer than a name, and neither
// symlinks nor junctions are followed. Names are UTF-8; one that is no valid UTF-16 has its lone surrogates as WTF-8.
type dir struct {
	h   windows.Handle
	dev uint64 // of the volume: all that can be reached without following anything is on it
}

const listAccess = windows.FILE_LIST_DIRECTORY | windows.FILE_TRAVERSE | readAttributes

func openTop(path string) (dir, error) {
	f, err := os.Open(path)
	if err != nil {
		return dir{}, err
	}
	defer f.Close()
	dev, err := volumeOf(windows.Handle(f.Fd()))
	if err != nil {
		return dir{}, err
	}
	return dir{windows.Handle(f.Fd()), dev}.again()
}

func (d dir) close() { _ = windows.CloseHandle(d.h) }

// descriptor is what package strategy takes for a directory.
func (d dir) descriptor() int { return int(d.h) }

// sync has nothing to do: see syncsFiles.
func (d dir) sync() error { return nil }

// syncsFiles says that each file that a rollback makes is to be synced by itself, if that is asked for: only an administrator
// can sync a volume.
const syncsFiles = true

func (d dir) syncFile(name string) error {
	return d.with(name, windows.FILE_WRITE_DATA, shareAll, windows.FILE_NON_DIRECTORY_FILE, windows.FlushFileBuffers)
}

// syncDirectory has nothing to do: NTFS and ReFS log changes of a directory in order, and give no way to wait for them.
func syncDirectory(string) error { return nil }

// sub opens a directory in d.
func (d dir) sub(name string) (dir, error) {
	h, err := ntOpen(d.h, name, listAccess, shareAll, windows.FILE_OPEN, windows.FILE_DIRECTORY_FILE)
	if err != nil {
		return dir{}, err
	}
	h, err = d.behind(h, name, listAccess, windows.FILE_DIRECTORY_FILE)
	return dir{h, d.dev}, err
}

// again opens d once more, with a position of its own.
func (d dir) again() (dir, error) {
	h, err := ntOpen(d.h, "", listAccess, shareAll, windows.FILE_OPEN, windows.FILE_DIRECTORY_FILE)
	return dir{h, d.dev}, err
}

// names lists the directory, sorted.
func (d dir) names(buf []byte) ([]string, error) {
	var names []string
	for class := uint32(windows.FileFullDirectoryRestartInfo); ; class = windows.FileFullDirectoryInfo {
		err := windows.GetFileInformationByHandleEx(d.h, class, &buf[0], uint32(len(buf)))
		if err == windows.ERROR_NO_MORE_FILES {
			break
		}
		if err != nil {
			return nil, err
		}
		names = appendNames(names, buf)
	}
	slices.Sort(names)
	return names, nil
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

// open opens a regular file for reading. Who has it open, for whatever, is not disturbed.
func (d dir) open(name string) (*os.File, error) {
	h, err := ntOpen(d.h, name, windows.FILE_GENERIC_READ, shareAll, windows.FILE_OPEN, windows.FILE_NON_DIRECTORY_FILE)
	if err != nil {
		return nil, err
	}
	if h, err = d.behind(h, name, windows.FILE_GENERIC_READ, windows.FILE_NON_DIRECTORY_FILE); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(h), name), nil
}

// xattrs gives none: see docs/windows.md for what is not kept.
func (d dir) xattrs(string) ([]checkpoint.Xattr, error) { return nil, nil }

func (d dir) selfXattrs() ([]checkpoint.Xattr, error) { return nil, nil }

func (d dir) mkdir(name string) error {
	h, err := ntOpen(d.h, name, readAttributes, shareAll, windows.FILE_CREATE, windows.FILE_DIRECTORY_FILE)
	if err != nil {
		return err
	}
	return windows.CloseHandle(h)
}

func (d dir) unlink(name string) error { return d.remove(name, 0) }

func (d dir) rmdir(name string) error { return d.remove(name, windows.FILE_DIRECTORY_FILE) }

// remove takes a name away at once, also of a file that is read-only or open in a program that allows it to be deleted.
func (d dir) remove(name string, options uint32) error {
	return d.with(name, windows.DELETE|readAttributes, shareAll, options, func(h windows.Handle) error {
		flags := uint32(windows.FILE_DISPOSITION_DELETE | windows.FILE_DISPOSITION_POSIX_SEMANTICS |
			windows.FILE_DISPOSITION_FORCE_IMAGE_SECTION_CHECK | windows.FILE_DISPOSITION_IGNORE_READONLY_ATTRIBUTE)
		err := set(h, windows.FileDispositionInformationEx, &flags)
		if unknownClass(err) {
			return writable(h, func() error {
				yes := uint32(1)
				return plainStatus(set(h, windows.FileDispositionInformation, &yes))
			})
		}
		return plainStatus(err)
	})
}

// writable calls fn while the file is not read-only, as older systems and filesystems want it. Another name of the
// file, if it has one, is read-only again afterwards.
func writable(h windows.Handle, fn func() error) error {
	info, err := basicOf(h)
	if err != nil || info.attributes&windows.FILE_ATTRIBUTE_READONLY == 0 {
		return fn()
	}
	w, err := ntOpen(h, "", windows.FILE_WRITE_ATTRIBUTES|readAttributes, shareAll, windows.FILE_OPEN, 0)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(w)
	if err := setAttributes(w, info.attributes&^windows.FILE_ATTRIBUTE_READONLY); err != nil {
		return err
	}
	err = fn()
	if e := setAttributes(w, info.attributes); err == nil && !isMissing(e) && !isDenied(e) { // it may be about to vanish
		err = e
	}
	return err
}

// rename gives name another one in d, in the place of what may be there, also if that is read-only.
func (d dir) rename(name, newName string) error {
	to, err := newNameInformation(d, newName)
	if err != nil {
		return err
	}
	return d.with(name, windows.DELETE|readAttributes, shareAll, 0, func(h windows.Handle) error {
		to.flags = windows.FILE_RENAME_REPLACE_IF_EXISTS | windows.FILE_RENAME_POSIX_SEMANTICS | windows.FILE_RENAME_IGNORE_READONLY_ATTRIBUTE
		err := set(h, fileRenameInformationEx, to)
		if !unknownClass(err) {
			return plainStatus(err)
		}
		to.flags = 1
		return d.writableName(newName, func() error { return plainStatus(set(h, windows.FileRenameInformation, to)) })
	})
}

// writableName is writable for a name that may be there.
func (d dir) writableName(name string, fn func() error) error {
	h, err := ntOpen(d.h, name, readAttributes, shareAll, windows.FILE_OPEN, 0)
	if isMissing(err) {
		return fn()
	}
	if err != nil {
		return err
	}
	info, err := basicOf(h)
	windows.CloseHandle(h) // what is open can't be replaced
	if err != nil || info.attributes&windows.FILE_ATTRIBUTE_READONLY == 0 {
		return fn()
	}
	err = d.with(name, windows.FILE_WRITE_ATTRIBUTES|readAttributes, shareAll, 0, func(h windows.Handle) error {
		return setAttributes(h, info.attributes&^windows.FILE_ATTRIBUTE_READONLY)
	})
	if err != nil {
		return err
	}
	return fn()
}

// link gives name, which is not followed, a second name in the directory to.
func (d dir) link(name string, to dir, newName string) error {
	in, err := newNameInformation(to, newName)
	if err != nil {
		return err
	}
	return d.with(name, windows.FILE_WRITE_ATTRIBUTES|readAttributes, shareAll, 0, func(h windows.Handle) error {
		return plainStatus(set(h, fileLinkInformation, in))
	})
}

// freely reports why a name can't be removed or replaced now: another program has it open and does not allow that.
func (d dir) freely(name string) error {
	return d.with(name, windows.DELETE|readAttributes, shareAll, 0, func(windows.Handle) error { return nil })
}
