//go:build linux

package overlay

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// Node is an inode of the tree that somebody holds: the kernel, an open handle, or a child. Two names of one inode give
// the same Node. There may be millions of them, so fields are small, and those that fit into one word stand together.
type Node struct {
	num     uint64
	dir     bool
	regular bool
	foreign bool         // on another filesystem than the workspace: can be read, not changed
	defACL  atomic.Int32 // of a directory: whether it has a default ACL; 0 is unknown, 1 no, 2 yes

	// mu guards the slots of a directory, and the records of any inode in this epoch.
	mu sync.Mutex

	// What this epoch knows of the inode. Each holds the epoch in which it was found out, so that a new epoch makes
	// all of them void. Read without a lock, written under mu.
	newIn     atomic.Uint64               // it is new
	oldIn     atomic.Uint64               // it is old
	attrIn    atomic.Uint64               // it has an attribute record
	contentIn atomic.Uint64               // it has a content record, and nothing more has to be saved
	xattrIn   atomic.Uint64               // it has an xattr record; with noXattrs, it has none, and no xattrs either
	locIn     atomic.Uint64               // the store knows where it is; holds Tree.locGen
	blocks    atomic.Pointer[savedBlocks] // it has a content record with block preimages
	class     atomic.Pointer[dirClass]    // of a directory: what the ignore patterns say of it

	// Guarded by Tree.nodesMu.
	id       checkpoint.ID
	parent   *Node // nil for the root and for an inode without a name
	name     string
	links    []link        // further names
	lookups  uint64        // references of the kernel or another caller of Lookup
	children int32         // nodes that have it as a parent
	pins     int32         // open handles and work under way
	last     *unix.Statx_t // of a dead one: how it ended
	trashed  bool          // it has a name in the trash
	dead     bool          // it has no name at all, and never will get one back from the trash

	// Guarded by Tree.openMu.
	direct  int32 // of handles: whose writes the daemon does not see
	handles []*Handle
}

// noXattrs is what Node.xattrIn has added to the epoch where there is nothing to record unless the inode is given xattrs.
const noXattrs = 1 << 63

// link is one name of an inode.
type link struct {
	parent *Node
	name   string
}

// Num is a number for the node that no other node of the tree has or will have. The root has 1.
func (n *Node) Num() uint64 { return n.num }

// format gives the type of the inode, as far as it matters where it is: a directory, or something else.
func (n *Node) format() uint32 {
	if n.dir {
		return unix.S_IFDIR
	}
	return unix.S_IFREG
}

// IsDir reports whether the node is a directory.
func (n *Node) IsDir() bool { return n.dir }

// NewNum gives a number for an inode of another volume that is mounted together with the tree.
func (t *Tree) NewNum() uint64 {
	t.nodesMu.Lock()
	defer t.nodesMu.Unlock()
	t.lastNum++
	return t.lastNum
}

// Root gives the root directory of the tree. It is always held.
func (t *Tree) Root() *Node { return t.root }

// Forget gives references back that Lookup, Create and the like have added.
func (t *Tree) Forget(n *Node, nlookup uint64) {
	t.nodesMu.Lock()
	if nlookup > n.lookups {
		nlookup = n.lookups
	}
	n.lookups -= nlookup
	gone := n.lookups == 0
	t.release(n)
	t.nodesMu.Unlock()
	if gone {
		t.disown(n)
	}
}

// release drops a node that nobody holds any more. The caller holds nodesMu.
func (t *Tree) release(n *Node) {
	for n != nil && n != t.root && n.lookups == 0 && n.children == 0 && n.pins == 0 {
		if t.nodes[n.id] == n {
			delete(t.nodes, n.id)
		}
		if n.dir {
			t.dirs.drop(n)
		}
		parent := n.parent
		n.parent = nil
		for _, l := range n.links {
			l.parent.children--
			t.release(l.parent)
		}
		n.links = nil
		if parent != nil {
			parent.children--
		}
		n = parent
	}
}

func (t *Tree) pin(n *Node) {
	t.nodesMu.Lock()
	n.pins++
	t.nodesMu.Unlock()
}

func (t *Tree) unpin(n *Node) {
	t.nodesMu.Lock()
	n.pins--
	t.release(n)
	t.nodesMu.Unlock()
}

// identity gives the node's ID, which changes when the inode under it is replaced.
func (t *Tree) identity(n *Node) checkpoint.ID {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	return n.id
}

// slotOf gives one name of the node; ok is false for the root and for an inode without one.
func (t *Tree) slotOf(n *Node) (parent *Node, name string, ok bool) {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	return n.parent, n.name, n.parent != nil
}

// isLive reports whether a directory is in the live tree, and not in the trash.
func (t *Tree) isLive(n *Node) bool { return t.depth(n) >= 0 }

// depth gives how many directories are above a node; -1 of one that is not in the live tree.
func (t *Tree) depth(n *Node) int {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	depth := 0
	for ; n != nil && n != t.root; n = n.parent {
		depth++
	}
	if n == nil {
		return -1
	}
	return depth
}

// known gives the node of an identity if there is one.
func (t *Tree) known(id checkpoint.ID) *Node {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	return t.nodes[id]
}

// intern gives the node of the inode that st describes and that parent has under name, with a lookup reference more.
func (t *Tree) intern(st *unix.Statx_t, parent *Node, name string) *Node {
	t.nodesMu.Lock()
	defer t.nodesMu.Unlock()
	n := t.internLocked(st)
	t.addName(n, parent, name)
	n.lookups++
	return n
}

func (t *Tree) internLocked(st *unix.Statx_t) *Node {
	id := t.idOf(st)
	n := t.nodes[id]
	if n == nil {
		t.lastNum++
		kind := uint32(st.Mode) & unix.S_IFMT
		n = &Node{num: t.lastNum, id: id, dir: kind == unix.S_IFDIR, regular: kind == unix.S_IFREG, foreign: t.isForeign(st)}
		t.nodes[id] = n
	}
	return n
}

// addName notes a name of n. A directory has only one. The caller holds nodesMu.
func (t *Tree) addName(n, parent *Node, name string) {
	if n == t.root || n.parent == parent && n.name == name {
		return
	}
	if n.parent == nil || n.dir {
		old := n.parent
		n.parent, n.name = parent, strings.Clone(name)
		parent.children++
		if old != nil {
			old.children--
			t.release(old)
		}
	} else if !slices.Contains(n.links, link{parent, name}) {
		n.links = append(n.links, link{parent, strings.Clone(name)})
		parent.children++
	}
	n.dead = false
	if n.dir {
		n.trashed = false
	}
}

// removeName forgets a name of n. The caller holds nodesMu.
func (t *Tree) removeName(n, parent *Node, name string) {
	if n.parent == parent && n.name == name {
		n.parent, n.name = nil, ""
		if k := len(n.links); k > 0 {
			n.parent, n.name = n.links[k-1].parent, n.links[k-1].name
			n.links = n.links[:k-1]
		}
	} else if i := slices.Index(n.links, link{parent, name}); i >= 0 {
		n.links = slices.Delete(n.links, i, i+1)
	} else {
		return
	}
	parent.children--
	t.release(parent)
}

// moved notes that the inode id went from one slot to another, or (to nil) lost a name. trashed says that it got a
// name in the trash; gone, that it has no name left at all.
func (t *Tree) moved(id checkpoint.ID, from *Node, fromName string, to *Node, toName string, trashed, gone bool) {
	t.nodesMu.Lock()
	defer t.nodesMu.Unlock()
	n := t.nodes[id]
	if n == nil {
		return
	}
	n.pins++ // keeps it while it has no name
	if from != nil {
		t.removeName(n, from, fromName)
	}
	if to != nil {
		t.addName(n, to, toName)
	}
	n.trashed = n.trashed || trashed
	if gone && n.parent == nil {
		n.dead = true
		delete(t.nodes, id)
	}
	n.pins--
	t.release(n)
}

// replaceIdentity makes n stand for another inode in the same slot.
func (t *Tree) replaceIdentity(n *Node, id checkpoint.ID) {
	t.nodesMu.Lock()
	defer t.nodesMu.Unlock()
	if t.nodes[n.id] == n {
		delete(t.nodes, n.id)
	}
	n.id = id
	n.blocks.Store(nil)
	n.trashed = false
	t.nodes[id] = n
}
