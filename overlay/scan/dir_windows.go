package scan

import (
	"os"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/nt"
	"golang.org/x/sys/windows"
)

// dir is an open directory. Everything in it is reached by its name from here: see package nt.
type dir struct {
	h   windows.Handle
	dev uint64 // of the volume: all that can be reached without following anything is on it
}

const listAccess = windows.FILE_LIST_DIRECTORY | windows.FILE_TRAVERSE | nt.Attributes

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
	return nt.With(d.h, name, windows.FILE_WRITE_DATA, nt.ShareAll, windows.FILE_NON_DIRECTORY_FILE, windows.FlushFileBuffers)
}

// syncDirectory has nothing to do: NTFS and ReFS log changes of a directory in order, and give no way to wait for them.
func syncDirectory(string) error { return nil }

// sub opens a directory in d.
func (d dir) sub(name string) (dir, error) {
	h, err := nt.Open(d.h, name, listAccess, nt.ShareAll, windows.FILE_OPEN, windows.FILE_DIRECTORY_FILE)
	if err != nil {
		return dir{}, err
	}
	h, err = d.behind(h, name, listAccess, windows.FILE_DIRECTORY_FILE)
	return dir{h, d.dev}, err
}

// again opens d once more, with a position of its own.
func (d dir) again() (dir, error) {
	h, err := nt.Open(d.h, "", listAccess, nt.ShareAll, windows.FILE_OPEN, windows.FILE_DIRECTORY_FILE)
	return dir{h, d.dev}, err
}

// names lists the directory, sorted.
func (d dir) names(buf []byte) ([]string, error) {
	names, err := nt.Names(d.h, buf)
	slices.Sort(names)
	return names, err
}

// open opens a regular file for reading. Who has it open, for whatever, is not disturbed.
func (d dir) open(name string) (*os.File, error) {
	h, err := nt.Open(d.h, name, windows.FILE_GENERIC_READ, nt.ShareAll, windows.FILE_OPEN, windows.FILE_NON_DIRECTORY_FILE)
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
	h, err := nt.Open(d.h, name, nt.Attributes, nt.ShareAll, windows.FILE_CREATE, windows.FILE_DIRECTORY_FILE)
	if err != nil {
		return err
	}
	return windows.CloseHandle(h)
}

func (d dir) unlink(name string) error { return nt.Remove(d.h, name) }

func (d dir) rmdir(name string) error { return nt.Remove(d.h, name) }

// rename gives name another one in d, in the place of what may be there, also if that is read-only.
func (d dir) rename(name, newName string) error { return nt.Rename(d.h, name, newName) }

// link gives name, which is not followed, a second name in the directory to.
func (d dir) link(name string, to dir, newName string) error {
	return nt.Link(d.h, name, to.h, newName)
}

// freely reports why a name can't be removed or replaced now: another program has it open and does not allow that.
func (d dir) freely(name string) error { return nt.Removable(d.h, name) }
