package ops

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// FS is the set of system calls that operations are made of. Paths are relative to its top and no symlink is followed:
// one in the middle of a path is ELOOP, one at its end is itself what the call is about. Errors are those of system calls, so
// that errors.As finds an errno.
type FS interface {
	// Open opens a regular file, or makes one. Anything else than a regular file or a directory is ENXIO.
	Open(path string, flags int, mode uint32) (File, error)
	// Tmpfile makes a regular file that has no name yet, in the directory dir.
	Tmpfile(dir string, mode uint32) (File, error)
	// LinkFile gives a name to what Tmpfile made.
	LinkFile(f File, path string) error
	ReadDir(path string) ([]string, error)
	IsDir(path string) (bool, error)
	Truncate(path string, size int64) error
	Mkdir(path string, mode uint32) error
	Rmdir(path string) error
	Unlink(path string) error
	Rename(from, to string, flags uint) error
	Link(from, to string) error
	Symlink(target, path string) error
	Mknod(path string, mode uint32, dev int) error
	Chmod(path string, mode uint32) error
	Chown(path string, uid, gid int) error
	Utimes(path string, ns int64) error
	SetXattr(path, name string, value []byte) error
	DelXattr(path, name string) error
}

// File is an open file of an FS.
type File interface {
	WriteAt(p []byte, off int64) (int, error)
	Size() (int64, error)
	Truncate(size int64) error
	Fallocate(mode uint32, off, n int64) error
	// CopyFrom copies n bytes from off of src, a file of the same FS.
	CopyFrom(src File, srcOff, off, n int64) error
	Fsync() error
	// Map makes a shared mapping of the first n bytes; there is one at most.
	Map(n int64) error
	// MapWrite writes through it.
	MapWrite(p []byte, off int64) error
	Close() error
}

// Executor executes operations on one FS. It keeps the handles that they open.
type Executor struct {
	fs      FS
	handles map[int]File
}

// NewExecutor makes an Executor that has no handles yet.
func NewExecutor(fs FS) *Executor { return &Executor{fs: fs, handles: make(map[int]File)} }

// With gives an Executor for another FS that has the handles of x, which is not used any more.
func (x *Executor) With(fs FS) *Executor { return &Executor{fs: fs, handles: x.handles} }

// ErrNoHandle is the result of an operation on a handle that isn't open.
var ErrNoHandle = errors.New("no such handle")

// Handles gives the numbers of the open handles.
func (x *Executor) Handles() []int {
	var out []int
	for h := range x.handles {
		out = append(out, h)
	}
	return out
}

// CloseHandles closes all handles.
func (x *Executor) CloseHandles() error {
	var errs []error
	for h, f := range x.handles {
		errs = append(errs, f.Close())
		delete(x.handles, h)
	}
	return errors.Join(errs...)
}

// Apply executes one operation on the tree. Its error is what the first call that failed gave.
func (x *Executor) Apply(o Op) error {
	if o.OnHandle() {
		return x.onHandle(o)
	}
	path, to := string(o.Path), string(o.To)
	switch o.Kind {
	case Create:
		return x.write(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, o)
	case Rewrite:
		return x.write(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, o)
	case Write:
		return x.write(path, unix.O_WRONLY, o)
	case Append:
		return x.append(path, o)
	case Replace:
		if err := x.write(to, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, o); err != nil {
			return err
		}
		return x.fs.Rename(to, path, 0)
	case Truncate:
		return x.fs.Truncate(path, o.Len)
	case Unlink:
		return x.fs.Unlink(path)
	case Mkdir:
		return x.fs.Mkdir(path, o.Mode)
	case Rmdir:
		return x.fs.Rmdir(path)
	case RemoveAll:
		return x.removeAll(path)
	case Rename:
		return x.fs.Rename(path, to, uint(o.Flags))
	case Link:
		return x.fs.Link(path, to)
	case Symlink:
		return x.fs.Symlink(string(o.Value), path)
	case Mknod:
		return x.fs.Mknod(path, o.Mode, int(o.Len))
	case Tmpfile:
		return x.tmpfile(path, to, o)
	case Chmod:
		return x.fs.Chmod(path, o.Mode)
	case Chown:
		return x.fs.Chown(path, o.UID, o.GID)
	case Utimes:
		return x.fs.Utimes(path, o.Time)
	case SetXattr:
		return x.fs.SetXattr(path, o.Name, []byte(o.Value))
	case DelXattr:
		return x.fs.DelXattr(path, o.Name)
	case Fallocate:
		return x.fallocate(path, o)
	case CopyRange:
		return x.copyRange(path, to, o)
	case HOpen:
		return x.open(path, o)
	}
	return fmt.Errorf("unknown operation %q", o.Kind)
}

// with opens path, calls fn and closes.
func (x *Executor) with(path string, flags int, mode uint32, fn func(File) error) error {
	f, err := x.fs.Open(path, flags, mode)
	if err != nil {
		return err
	}
	return errors.Join(fn(f), f.Close())
}

func (x *Executor) write(path string, flags int, o Op) error {
	return x.with(path, flags, o.Mode, func(f File) error { return writeAt(f, o, o.Off) })
}

func writeAt(f File, o Op, off int64) error {
	if o.Len == 0 {
		return nil
	}
	_, err := f.WriteAt(Data(o.Seed, o.Len), off)
	return err
}

func (x *Executor) append(path string, o Op) error {
	return x.with(path, unix.O_WRONLY|unix.O_APPEND, 0, func(f File) error { return appendTo(f, o) })
}

func appendTo(f File, o Op) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	return writeAt(f, o, size)
}

func (x *Executor) tmpfile(dir, to string, o Op) error {
	f, err := x.fs.Tmpfile(dir, o.Mode)
	if err != nil {
		return err
	}
	err = writeAt(f, o, 0)
	if err == nil {
		err = x.fs.LinkFile(f, to)
	}
	return errors.Join(err, f.Close())
}

func (x *Executor) fallocate(path string, o Op) error {
	return x.with(path, unix.O_RDWR, 0, func(f File) error { return f.Fallocate(o.Flags, o.Off, o.Len) })
}

func (x *Executor) copyRange(from, to string, o Op) error {
	return x.with(from, unix.O_RDONLY, 0, func(src File) error {
		return x.with(to, unix.O_WRONLY, 0, func(dst File) error { return dst.CopyFrom(src, 0, o.Off, o.Len) })
	})
}

// removeAll removes path and all that is below it, in the order of names.
func (x *Executor) removeAll(path string) error {
	dir, err := x.fs.IsDir(path)
	if err != nil {
		return err
	}
	if !dir {
		return x.fs.Unlink(path)
	}
	names, err := x.fs.ReadDir(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := x.removeAll(path + "/" + name); err != nil {
			return err
		}
	}
	return x.fs.Rmdir(path)
}

func (x *Executor) open(path string, o Op) error {
	if _, ok := x.handles[o.Handle]; ok {
		return unix.EBUSY
	}
	f, err := x.fs.Open(path, int(o.Flags), o.Mode)
	if err == nil {
		x.handles[o.Handle] = f
	}
	return err
}

func (x *Executor) onHandle(o Op) error {
	f, ok := x.handles[o.Handle]
	if !ok {
		return ErrNoHandle
	}
	switch o.Kind {
	case HWrite:
		return writeAt(f, o, o.Off)
	case HAppend:
		return appendTo(f, o)
	case HTruncate:
		return f.Truncate(o.Len)
	case HFallocate:
		return f.Fallocate(o.Flags, o.Off, o.Len)
	case HMap:
		return f.Map(o.Len)
	case HMapWrite:
		return f.MapWrite(Data(o.Seed, o.Len), o.Off)
	case HFsync:
		return f.Fsync()
	case HClose:
		delete(x.handles, o.Handle)
		return f.Close()
	}
	return fmt.Errorf("unknown operation %q on a handle", o.Kind)
}
