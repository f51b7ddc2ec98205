//go:build unix

package strategy

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// dir is a directory, used through its descriptor only.
type dir struct{ file }

// openDir opens d once more, so that d stays the caller's.
func openDir(d *os.File) (dir, error) {
	return dir{fileOf(d)}.reopen()
}

// dirOf uses a descriptor that stays the caller's: do not close it.
func dirOf(fd int) (d dir, done func(), err error) { return dir{file{fd}}, func() {}, nil }

func (d dir) reopen() (dir, error) {
	fd, err := d.openat(".", unix.O_RDONLY|unix.O_DIRECTORY)
	return dir{file{fd}}, err
}

func (d dir) openat(name string, flags int) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(d.fd, name, flags|unix.O_CLOEXEC, 0o600) })
	return fd, os.NewSyscallError("openat", err)
}

// create makes a new file, open for reading and writing.
func (d dir) create(name string) (file, error) {
	fd, err := d.openat(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW)
	return file{fd}, err
}

// open opens a file for reading. It follows no symlink and waits for no writer of a fifo.
func (d dir) open(name string) (file, error) {
	fd, err := d.openat(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	return file{fd}, err
}

// openWritable is open for writing too.
func (d dir) openWritable(name string) (file, error) {
	fd, err := d.openat(name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	return file{fd}, err
}

func (d dir) remove(name string) error {
	return os.NewSyscallError("unlinkat", unix.Unlinkat(d.fd, name, 0))
}

// link gives the file name a second name in the directory to.
func (d dir) link(name string, to dir, newName string) error {
	return os.NewSyscallError("linkat", unix.Linkat(d.fd, name, to.fd, newName, 0))
}

// each calls fn for every name of the directory but "." and "..".
func (d dir) each(fn func(name string, st stat) error) error {
	// An open file description of its own: the position of readdir is part of it.
	again, err := d.reopen()
	if err != nil {
		return err
	}
	f := again.osFile("preimages")
	defer func() { _ = f.Close() }()
	for {
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			if err := d.visit(name, fn); err != nil {
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

func (d dir) visit(name string, fn func(name string, st stat) error) error {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT { // removed meanwhile
		return nil
	}
	if err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	return fn(name, toStat(&st))
}
