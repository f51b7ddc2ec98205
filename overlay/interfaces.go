//go:build linux

package overlay

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// Volume is a tree of files that can be mounted: the live tree, a branch, or the state that one of them had. Its methods may be called
// concurrently. They mean what those of Tree with the same names mean; errors that a program should see are plain unix.Errno
// values. A change of what cannot be changed gives EROFS.
type Volume interface {
	Root() Inode
	Forget(n Inode, nlookup uint64)

	Lookup(dir Inode, name string) (Inode, Attr, error)
	GetAttr(n Inode, f File) (Attr, error)
	SetAttr(n Inode, f File, in *SetAttr) (Attr, error)
	Readlink(n Inode) (string, error)
	Statfs() (unix.Statfs_t, error)

	OpenDir(n Inode) (Dir, error)
	Open(n Inode, flags int, direct bool, c *Caller) (File, error)
	Create(dir Inode, name string, flags int, mode uint32, direct bool, c *Caller) (Inode, File, Attr, error)
	Tmpfile(dir Inode, flags int, mode uint32, direct bool, c *Caller) (Inode, File, Attr, error)

	Mkdir(dir Inode, name string, mode uint32, c *Caller) (Inode, Attr, error)
	Mknod(dir Inode, name string, mode, rdev uint32, c *Caller) (Inode, Attr, error)
	Symlink(dir Inode, name, target string, c *Caller) (Inode, Attr, error)
	Link(n, dir Inode, name string) (Attr, error)
	Unlink(dir Inode, name string) error
	Rmdir(dir Inode, name string) error
	Rename(oldDir Inode, oldName string, newDir Inode, newName string, flags uint32) error

	GetXattr(n Inode, name string, dest []byte) (int, error)
	ListXattr(n Inode, dest []byte) (int, error)
	SetXattr(n Inode, name string, value []byte, flags int) error
	RemoveXattr(n Inode, name string) error
}

// Follower is a Volume that may show a part of the live tree, which changes without anybody being told of it.
type Follower interface {
	Follows() bool
}

// Inode is a file of any type in a volume. Two names of one inode give the same Inode, which can be compared with ==.
type Inode interface {
	// Num is a number that no other inode of any volume of the workspace has or will have while the workspace is open.
	Num() uint64
	IsDir() bool
}

// File is an open regular file.
type File interface {
	Inode() Inode
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Fsync(datasync bool) error
	Fallocate(mode uint32, off, length int64) error
	Lseek(off int64, whence int) (int64, error)

	// CopyFileRange gives EXDEV where out is of another volume.
	CopyFileRange(offIn int64, out File, offOut int64, length, flags int) (int, error)

	// Direct reports whether reads and writes may bypass the daemon, by the descriptor that Fd gives.
	Direct() bool
	Fd() int
	Release()
}

// Dir is an open directory. Cookies outlive it: another Dir of the same inode goes on where this one was.
type Dir interface {
	Inode() Inode
	Next(off uint64) (e DirEntry, ok bool, err error)
	Fsync(datasync bool) error
	Release()
}

// State is what the live tree was at one moment. It never changes, whatever becomes of the live tree. Inodes are named by the identity that they
// had then. Methods may be called concurrently; errors are plain unix.Errno values where a program should see them.
type State interface {
	Root() checkpoint.ID

	// Lookup gives what dir had under name, or ENOENT.
	Lookup(dir checkpoint.ID, name string) (StateEntry, error)

	// List gives what dir had, in no order, without "." and "..". DirEntry.Off means nothing.
	List(dir checkpoint.ID) ([]DirEntry, error)

	// Attr gives the attributes. Nlink counts the names that the inode had; of a directory it is 1.
	Attr(id checkpoint.ID) (Attr, error)
	Xattrs(id checkpoint.ID) ([]checkpoint.Xattr, error)
	Readlink(id checkpoint.ID) (string, error)

	// Open opens the content of a regular file.
	Open(id checkpoint.ID) (StateFile, error)

	// Close gives the state back. The last one who has it lets go of what only it needs in memory.
	Close()
}

// StateEntry is what a directory had under a name.
type StateEntry struct {
	ID   checkpoint.ID
	Type uint32 // the S_IFMT bits of the mode
}

// StateFile is the content that a regular file had. Methods may be called concurrently.
type StateFile interface {
	// ReadAt reads as pread(2) does: 0 bytes at the end, no io.EOF.
	ReadAt(p []byte, off int64) (int, error)
	// Lseek is lseek(2), for SEEK_DATA and SEEK_HOLE.
	Lseek(off int64, whence int) (int64, error)
	// CloneTo fills an empty file with the content: by a reflink where that works, else by copying all but the holes.
	CloneTo(fd int) error
	Close()
}
