package strategy

import (
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"

	"github.com/hyperfs/hyperfs/internal/nt"
	"golang.org/x/sys/windows"
)

// file is an open file, read and written by position.
type file struct{ *os.File }

// stat is what the tiers need to know of a file.
type stat struct {
	size    int64 // bytes
	mtime   int64 // ns since 1970
	regular bool
}

func fileOf(f *os.File) file { return file{f} }

func (f file) osFile(string) *os.File { return f.File }

// readAt reads until p is full or the file ends, which is no error.
func (f file) readAt(p []byte, off int64) (int, error) {
	n, err := f.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (f file) writeAt(p []byte, off int64) error {
	_, err := f.WriteAt(p, off)
	return err
}

func (f file) stat() (stat, error) {
	info, err := f.Stat()
	if err != nil {
		return stat{}, err
	}
	return toStat(info), nil
}

func toStat(info os.FileInfo) stat {
	return stat{size: info.Size(), mtime: info.ModTime().UnixNano(), regular: info.Mode().IsRegular()}
}

func (f file) truncate(size int64) error { return f.Truncate(size) }
func (f file) sync() error               { return f.Sync() }
func (f file) close() error              { return f.Close() }

// dir is a directory, used through its handle only.
type dir struct{ h windows.Handle }

const listAccess = windows.FILE_LIST_DIRECTORY | windows.FILE_TRAVERSE | nt.Attributes

// openDir opens d once more, so that d stays the caller's.
func openDir(d *os.File) (dir, error) {
	defer runtime.KeepAlive(d)
	return dir{windows.Handle(d.Fd())}.reopen()
}

// dirOf uses a handle that stays the caller's: do not close it.
func dirOf(fd int) (d dir, done func(), err error) { return dir{windows.Handle(fd)}, func() {}, nil }

func (d dir) reopen() (dir, error) {
	h, err := nt.Open(d.h, "", listAccess, nt.ShareAll, windows.FILE_OPEN, windows.FILE_DIRECTORY_FILE)
	return dir{h}, os.NewSyscallError("NtCreateFile", err)
}

func (d dir) openFile(name string, access, disposition uint32) (file, error) {
	h, err := nt.Open(d.h, name, access, nt.ShareAll, disposition, windows.FILE_NON_DIRECTORY_FILE)
	if err != nil {
		return file{}, os.NewSyscallError("NtCreateFile", err)
	}
	return file{os.NewFile(uintptr(h), name)}, nil
}

// create makes a new file, open for reading and writing.
func (d dir) create(name string) (file, error) {
	return d.openFile(name, windows.FILE_GENERIC_READ|windows.FILE_GENERIC_WRITE, windows.FILE_CREATE)
}

// open opens a file for reading. What is none is seen in its stat.
func (d dir) open(name string) (file, error) {
	f, err := d.openFile(name, windows.FILE_GENERIC_READ, windows.FILE_OPEN)
	if errors.Is(err, syscall.EISDIR) || errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_INVALID_NAME) {
		return d.openOdd(name, err)
	}
	return f, err
}

// openWritable is open for writing too.
func (d dir) openWritable(name string) (file, error) {
	return d.openFile(name, windows.FILE_GENERIC_READ|windows.FILE_GENERIC_WRITE, windows.FILE_OPEN)
}

// openOdd opens what is there under the name of a file, if it is a directory; else it gives back the error.
func (d dir) openOdd(name string, was error) (file, error) {
	h, err := nt.Open(d.h, name, nt.Attributes, nt.ShareAll, windows.FILE_OPEN, windows.FILE_DIRECTORY_FILE)
	if err != nil {
		return file{}, was
	}
	return file{os.NewFile(uintptr(h), name)}, nil
}

func (d dir) remove(name string) error {
	return os.NewSyscallError("NtSetInformationFile", nt.Remove(d.h, name))
}

// link gives the file name a second name in the directory to.
func (d dir) link(name string, to dir, newName string) error {
	return os.NewSyscallError("NtSetInformationFile", nt.Link(d.h, name, to.h, newName))
}

// sync has nothing to do: NTFS logs changes of a directory in order.
func (d dir) sync() error  { return nil }
func (d dir) close() error { return windows.CloseHandle(d.h) }

// each calls fn for every name of the directory.
func (d dir) each(fn func(name string, st stat) error) error {
	names, err := nt.Names(d.h, make([]byte, 64<<10))
	if err != nil {
		return os.NewSyscallError("GetFileInformationByHandleEx", err)
	}
	for _, name := range names {
		if err := d.visit(name, fn); err != nil {
			return err
		}
	}
	return nil
}

func (d dir) visit(name string, fn func(name string, st stat) error) error {
	h, err := nt.Open(d.h, name, nt.Attributes, nt.ShareAll, windows.FILE_OPEN, 0)
	if nt.IsMissing(err) { // removed meanwhile
		return nil
	}
	if err != nil {
		return os.NewSyscallError("NtCreateFile", err)
	}
	f := file{os.NewFile(uintptr(h), name)}
	st, err := f.stat()
	_ = f.close() // before fn, which may remove it
	if err != nil {
		return err
	}
	return fn(name, st)
}
