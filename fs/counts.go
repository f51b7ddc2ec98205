package fs

import "sync/atomic"

// op is a kind of request or notification.
type op int

const (
	opLookup op = iota
	opForget
	opGetAttr
	opSetAttr
	opStatx
	opReadlink
	opMknod
	opMkdir
	opSymlink
	opLink
	opUnlink
	opRmdir
	opRename
	opCreate
	opTmpfile
	opOpen
	opRelease
	opRead
	opWrite
	opLseek
	opFsync
	opFallocate
	opCopyFileRange
	opGetXattr
	opListXattr
	opSetXattr
	opRemoveXattr
	opOpenDir
	opReadDir
	opReadDirPlus
	opFsyncDir
	opStatFs
	opIoctl
	opFlush
	opInvalEntry
	opInvalInode
	opFlushInode
	opPassthrough
	opEcho
	opCount
)

var opNames = [opCount]string{
	"lookup", "forget", "getattr", "setattr", "statx", "readlink", "mknod", "mkdir", "symlink", "link", "unlink", "rmdir",
	"rename", "create", "tmpfile", "open", "release", "read", "write", "lseek", "fsync", "fallocate", "copy_file_range",
	"getxattr", "listxattr", "setxattr", "removexattr", "opendir", "readdir", "readdirplus", "fsyncdir", "statfs", "ioctl",
	"flush", "inval_entry", "inval_inode", "flush_inode", "passthrough_open", "watch_event",
}

// counts are how many requests of each kind there were.
type counts [opCount]atomic.Uint64

func (c *counts) add(o op) { c[o].Add(1) }

// snapshot gives those that are not zero, by name.
func (c *counts) snapshot() map[string]uint64 {
	m := map[string]uint64{}
	for i := range c {
		if n := c[i].Load(); n > 0 {
			m[opNames[i]] = n
		}
	}
	return m
}
