package strategy

import (
	"errors"
	"io"
	"os"

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

// dir is a directory that names can't lead out of.
type dir struct{ root *os.Root }

// openDir opens d once more, so that d stays the caller's.
func openDir(d *os.File) (dir, error) {
	root, err := os.OpenRoot(d.Name())
	return dir{root}, err
}

// dirOf uses a handle that stays the caller's, by the path that it has now. done releases what that took.
func dirOf(fd int) (d dir, done func(), err error) {
	path := make([]uint16, windows.MAX_LONG_PATH)
	n, err := windows.GetFinalPathNameByHandle(windows.Handle(fd), &path[0], uint32(len(path)), 0)
	if err != nil {
		return dir{}, nil, os.NewSyscallError("GetFinalPathNameByHandle", err)
	}
	root, err := os.OpenRoot(windows.UTF16ToString(path[:n]))
	if err != nil {
		return dir{}, nil, err
	}
	return dir{root}, func() { _ = root.Close() }, nil
}

// create makes a new file, open for reading and writing.
func (d dir) create(name string) (file, error) {
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return file{f}, err
}

// open opens a file for reading.
func (d dir) open(name string) (file, error) {
	f, err := d.root.Open(name)
	return file{f}, err
}

// remove falls back to the path where the system does not know the request by which package os removes a name of a directory:
// Windows before 10, and Wine.
func (d dir) remove(name string) error {
	err := d.root.Remove(name)
	if errors.Is(err, windows.ERROR_INVALID_FUNCTION) {
		err = os.Remove(d.root.Name() + `\` + name)
	}
	return err
}

// link gives the file name a second name in the directory to, through paths: there is no call relative to handles.
func (d dir) link(name string, to dir, newName string) error {
	return os.Link(d.root.Name()+`\`+name, to.root.Name()+`\`+newName)
}

// sync has nothing to do: NTFS logs changes of a directory in order.
func (d dir) sync() error  { return nil }
func (d dir) close() error { return d.root.Close() }

// each calls fn for every name of the directory.
func (d dir) each(fn func(name string, st stat) error) error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for {
		infos, err := f.Readdir(1024)
		for _, info := range infos {
			if err := fn(info.Name(), toStat(info)); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
