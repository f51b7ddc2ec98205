// Package treestate captures everything about a directory tree that a rollback has to give back, so that tests can
// prove that two trees are the same in every respect of invariant I5, and say exactly where they are not.
//
// Nothing in a State refers to inode numbers, device numbers, access times or change times: two trees that a careful
// copy made alike have equal States.
package treestate

import (
	"fmt"
	"sort"
)

// StoreName is the one name that Capture and Copy leave out of the top directory: the store of hyperfs.
const StoreName = ".hyperfs"

// State is the captured content of one tree: one Entry per name, the top directory itself included under ".".
type State map[string]Entry

// Entry is one name of a tree and what it leads to. Its fields are exported so that a State survives encoding/gob.
type Entry struct {
	Path  string // relative to the top directory, raw bytes, never starting with a slash; "." is the top itself
	Mode  uint32 // st_mode: type and permission bits
	UID   uint32
	GID   uint32
	Size  int64  // bytes, of regular files and symlinks; 0 of all else, where it says nothing
	Mtime int64  // ns since 1970
	Rdev  uint64 // of devices

	Sum    Sum               // of a regular file's content
	Target string            // of a symlink
	Xattrs map[string]string // by name, the POSIX ACLs among them; nil where there are none

	// First is the smallest path of the tree that is the same inode, this one's own if it has no other name there.
	First string
	// Nlink is st_nlink of what isn't a directory. It may count names that are outside the tree.
	Nlink uint32

	// Data lists the ranges of a regular file that aren't holes, if Options.Holes asked for it. Of a range that was
	// allocated but never written, filesystems tell now this, now that, depending on what is in the page cache.
	Data []Extent
	// Allocated is what st_blocks tells, in bytes, of a regular file, if Options.Holes asked for it.
	Allocated int64

	// Unreadable says why Sum, or the list of a directory's entries, could not be had: it is empty if it was.
	Unreadable string
}

// Extent is a range of bytes.
type Extent struct{ Off, Len int64 }

// Options of Capture. The zero value is what most tests want.
type Options struct {
	Holes    bool // find out where holes are: two more system calls for each extent
	NoHash   bool // leave Sum zero: for trees whose content does not matter
	KeepName bool // do not leave StoreName out

	Contents *Contents // gets the contents of all regular files, where it is not nil; on Linux
}

// Paths gives every path of the state in order, the top's "." first.
func (s State) Paths() []string {
	paths := make([]string, 0, len(s))
	for p := range s {
		if p != "." {
			paths = append(paths, p)
		}
	}
	sort.Strings(paths)
	if _, ok := s["."]; ok {
		paths = append([]string{"."}, paths...)
	}
	return paths
}

// linkGroups fills in First, given the inode of every path.
func (s State) linkGroups(inode map[string]inodeKey) {
	first := make(map[inodeKey]string)
	for p, key := range inode {
		if f, ok := first[key]; !ok || p < f {
			first[key] = p
		}
	}
	for p, key := range inode {
		e := s[p]
		e.First = first[key]
		s[p] = e
	}
}

// inodeKey tells the inodes of one capture apart.
type inodeKey struct{ dev, ino uint64 }

// TypeName names the type of a file as ls and find do.
func TypeName(mode uint32) string {
	switch mode & modeType {
	case modeDir:
		return "directory"
	case modeRegular:
		return "file"
	case modeSymlink:
		return "symlink"
	case 0o010000:
		return "fifo"
	case 0o140000:
		return "socket"
	case 0o020000:
		return "character device"
	case 0o060000:
		return "block device"
	}
	return fmt.Sprintf("type %#o", mode&modeType)
}

// The type bits of st_mode, as POSIX has them on every system that hyperfs knows.
const (
	modeType    = 0o170000
	modeDir     = 0o040000
	modeRegular = 0o100000
	modeSymlink = 0o120000
)

// IsDir reports whether e is a directory.
func (e Entry) IsDir() bool { return e.Mode&modeType == modeDir }

// IsRegular reports whether e is a regular file.
func (e Entry) IsRegular() bool { return e.Mode&modeType == modeRegular }

// IsSymlink reports whether e is a symlink.
func (e Entry) IsSymlink() bool { return e.Mode&modeType == modeSymlink }
