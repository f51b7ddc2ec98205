package scan

import (
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/strategy"
)

// manifest is the state of a tree: its entries in the order of a walk that lists each directory by name, and visits what
// is in a directory right after it. The first one is the workspace itself.
type manifest struct {
	stamp   int64 // the filesystem's time before the scan began: see racy
	entries []entry
	asBase  bool // of one that was just made: it is that of the scan's base, and shares its entries
	scope   scope
	sought  scope              // of one that was just made: the scope with the tracked paths at which there was something else
	left    map[int32][]string // of one that was just made: by directory, the names there that are not in the scope, sorted
}

// entry is one name and what it leads to.
type entry struct {
	name   string // raw bytes; "" for the workspace itself
	parent int32  // index; -1 for the workspace itself
	end    int32  // index after the last entry below it
	first  int32  // index of the first name of the same inode, mostly its own
	flags  flags
	stat
	target string             // of a symlink
	xattrs []checkpoint.Xattr // sorted by name
	ref    strategy.Ref       // the content of a regular file; a zero one if it is empty, or not kept
}

type flags uint8

const (
	// flagUnstable says that the file may have been written to without a trace in its times since it was read.
	flagUnstable flags = 1 << iota
	// flagClosed says that this user may not read it, so that its content is not kept. It can't be changed by this
	// user either; what cannot be had back is found out before a rollback touches anything.
	flagClosed
	// flagForeign says that something else is mounted there: a filesystem, or a single file. It is not protected, and never
	// touched.
	flagForeign
	// flagWay says that it is an ignored directory, here only because something tracked may be below it. Its attributes are not
	// protected, and a rollback makes it where it is missing, but never removes it.
	flagWay
)

// raceSlop is how much older than the stamp a ctime must be, in ns, to be told from one of a later change: the kernel's
// clock for files goes in ticks of up to 10 ms.
const raceSlop = 50e6

// racy reports whether e may have changed after the scan without that its times tell.
func (m *manifest) racy(e *entry) bool {
	return e.flags&flagUnstable != 0 || e.ctime >= m.stamp-raceSlop
}

// children calls fn for every entry of the directory i, in order.
func (m *manifest) children(i int32, fn func(k int32)) {
	for k := i + 1; k < m.entries[i].end; k = m.entries[k].end {
		fn(k)
	}
}

// path gives the workspace-relative path of an entry, "." for the workspace itself.
func (m *manifest) path(i int32) string {
	var names []string
	for ; i > 0; i = m.entries[i].parent {
		names = append(names, m.entries[i].name)
	}
	if names == nil {
		return "."
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}

// closeDirs sets the end of every entry, when all are there.
func (m *manifest) closeDirs() {
	for i := range m.entries {
		m.entries[i].end = int32(i) + 1
	}
	for i := len(m.entries) - 1; i > 0; i-- {
		p := &m.entries[m.entries[i].parent]
		p.end = max(p.end, m.entries[i].end)
	}
}

// remove takes out the entries that gone has. None of them is a directory or the first of several names.
func (m *manifest) remove(gone map[int32]bool) {
	if len(gone) == 0 {
		return
	}
	moved := make([]int32, len(m.entries))
	kept := m.entries[:0]
	for i := range m.entries {
		moved[i] = int32(len(kept))
		if gone[int32(i)] {
			continue
		}
		e := m.entries[i]
		if e.parent >= 0 {
			e.parent = moved[e.parent]
		}
		e.first = moved[e.first]
		kept = append(kept, e)
	}
	m.entries = kept
	m.closeDirs()
	left := make(map[int32][]string, len(m.left))
	for i, names := range m.left {
		left[moved[i]] = names
	}
	m.left = left
}

// inodes gives the first entry of every inode that is not a directory.
func (m *manifest) inodes() map[inode]int32 {
	all := make(map[inode]int32, len(m.entries))
	for i := range m.entries {
		e := &m.entries[i]
		if !e.isDir() && e.first == int32(i) {
			all[e.inode()] = int32(i)
		}
	}
	return all
}

// pairs gives for every entry of a the one of b that has the same path, -1 where there is none.
func pairs(a, b *manifest) []int32 {
	at := make([]int32, len(a.entries))
	for i := range at {
		at[i] = -1
	}
	at[0] = 0
	for i := range a.entries {
		if !a.entries[i].isDir() || at[i] < 0 || !b.entries[at[i]].isDir() {
			continue
		}
		names := newCursor(b, at[i])
		a.children(int32(i), func(c int32) { at[c] = names.find(a.entries[c].name) })
	}
	return at
}
