package scan

import (
	"bytes"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
)

// sameAttrs reports whether two inodes of one type have the same attributes.
func sameAttrs(a, b *entry) bool {
	if a.flags&b.flags&flagForeign != 0 || (a.flags|b.flags)&flagWay != 0 {
		return true // they are not ours
	}
	return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.mtime == b.mtime && sameXattrs(a.xattrs, b.xattrs)
}

func sameXattrs(a, b []checkpoint.Xattr) bool {
	return slices.EqualFunc(a, b, func(x, y checkpoint.Xattr) bool { return x.Name == y.Name && bytes.Equal(x.Value, y.Value) })
}

// sameData reports whether two entries of complete manifests hold the same: type, content, target, device. Where it can
// only be told by reading backups it says no. With holes, the same bytes with other holes are not the same.
func sameData(a, b *entry, holes bool) bool {
	if a.kind() != b.kind() || (a.flags^b.flags)&(flagForeign) != 0 {
		return false
	}
	if a.flags&flagForeign != 0 {
		return true
	}
	switch a.kind() {
	case modeRegular:
		return sameContent(a, b, holes)
	case modeSymlink:
		return a.target == b.target && a.rdev == b.rdev
	case modeChar, modeBlock:
		return a.rdev == b.rdev
	}
	return true
}

func sameContent(a, b *entry, holes bool) bool {
	switch {
	case a.flags&flagClosed != 0:
		return a.sameInode(&b.stat) && a.size == b.size && a.mtime == b.mtime
	case a.size != b.size:
		return false
	case a.size == 0 && b.flags&flagClosed == 0:
		return true
	case a.ref.Name == "" || b.ref.Name == "":
		return false
	case a.ref.Name == b.ref.Name:
		return true
	}
	return a.ref.HasSum && b.ref.HasSum && a.ref.Sum == b.ref.Sum && (!holes || sameHoles(&a.stat, &b.stat))
}

// changes counts the names that another manifest does not have, or has with something else.
func (m *manifest) changes(other *manifest) (n int) {
	m, other = both(m, other)
	at := pairs(m, other)
	for i := range other.entries {
		if other.entries[i].flags&flagWay == 0 {
			n++
		}
	}
	for i := range m.entries {
		a := &m.entries[i]
		if at[i] < 0 {
			if a.flags&flagWay == 0 {
				n++
			}
			continue
		}
		b := &other.entries[at[i]]
		if b.flags&flagWay == 0 && sameData(a, b, false) && (sameAttrs(a, b) || a.isDir()) {
			n--
		}
	}
	return n
}
