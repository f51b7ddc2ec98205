package scan

import "math"

// The type bits of st_mode, as POSIX has them on every system that hyperfs knows.
const (
	modeType    = 0o170000
	modeFifo    = 0o010000
	modeChar    = 0o020000
	modeDir     = 0o040000
	modeBlock   = 0o060000
	modeRegular = 0o100000
	modeSymlink = 0o120000
	modeSocket  = 0o140000
	modePerm    = 0o7777
	modeShown   = modeType | modePerm // above, a system may have attributes of its own
)

// unknownTime is the ctime of a file whose times tell nothing. It is compared by content every time.
const unknownTime = math.MaxInt64

// stat is what a manifest keeps of an inode. Fields that a system does not have are 0.
type stat struct {
	mode     uint32 // type and permission bits of stat(2)
	uid, gid uint32
	rdev     uint64 // of devices; of symlinks what kind of link it is, on systems that have several
	nlink    uint32
	size     int64 // bytes; of regular files and symlinks
	mtime    int64 // ns since 1970, as all times
	ctime    int64
	birth    int64 // 0 where it is not known or not stable
	dev, ino uint64
	blocks   int64 // of 512 bytes
	mount    uint64
}

func (s *stat) kind() uint32    { return s.mode & modeType }
func (s *stat) isDir() bool     { return s.kind() == modeDir }
func (s *stat) isRegular() bool { return s.kind() == modeRegular }

// linkJunction is a bit of stat.rdev: the symlink is a junction of Windows, or a volume mounted there.
const linkJunction = 1

// inode names an inode as long as it lives.
type inode struct{ dev, ino uint64 }

func (s *stat) inode() inode { return inode{s.dev, s.ino} }

// untouched reports whether nothing about the inode can have changed between two looks at it, provided that the
// first was not racy.
func (s *stat) untouched(later *stat) bool {
	return s.inode() == later.inode() && s.mode == later.mode && s.size == later.size &&
		s.mtime == later.mtime && s.ctime == later.ctime && s.uid == later.uid && s.gid == later.gid
}

// sameInode reports whether two looks, maybe far apart, were at one inode, also if it was renamed or written to meanwhile:
// its number may have been used again, so where birth times are not known the rest must speak for it.
func (s *stat) sameInode(later *stat) bool {
	if s.inode() != later.inode() || s.kind() != later.kind() {
		return false
	}
	if s.birth != 0 && later.birth != 0 {
		return s.birth == later.birth
	}
	return s.isDir() || s.size == later.size && s.mtime == later.mtime
}
