package fs

import (
	"math"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
)

// inode is a node that the kernel knows. Its ID there is overlay.Inode.Num, which is never used twice.
type inode struct {
	node
	nlookup uint64 // replies that named it and were not forgotten; guarded by its shard
}

const nodeShards = 64

// nodeTable has every node that the kernel knows but the root. Its counts mirror those that the volumes keep: each
// reference that a call on one adds is entered by ref, each that the kernel forgets leaves by forget. An entry goes when its
// count is zero, under the lock that ref takes: so a node that is looked up again while it is forgotten gets a new one.
// Each entry holds its volume.
type nodeTable struct {
	gone   func(num uint64) // is called before a node is given back that the kernel has forgotten; may be nil
	shards [nodeShards]struct {
		mu sync.Mutex
		m  map[uint64]inode // guarded by mu
		_  [48]byte         // keeps neighbours out of one cache line
	}
}

func newNodeTable() *nodeTable {
	t := &nodeTable{}
	for i := range t.shards {
		t.shards[i].m = map[uint64]inode{}
	}
	return t
}

// ref enters one reference that the volume has given. It is false, and nothing is entered, if the volume was given up.
func (t *nodeTable) ref(n node) bool {
	id := n.num()
	if id == fuse.FUSE_ROOT_ID {
		return true
	}
	s := &t.shards[id%nodeShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	nlookup := s.m[id].nlookup
	switch {
	case nlookup > 0 && n.vol.gone() || nlookup == 0 && !n.vol.enter(id):
		return false
	case nlookup == 0:
		n.vol.hold()
	}
	s.m[id] = inode{n, nlookup + 1}
	return true
}

// use gives the node of an ID, and holds its volume.
func (t *nodeTable) use(id uint64) (n node, ok bool) {
	s := &t.shards[id%nodeShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.m[id]
	if ok {
		in.vol.hold()
	}
	return in.node, ok
}

func (t *nodeTable) has(id uint64) bool {
	s := &t.shards[id%nodeShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.m[id]
	return ok
}

// forget takes references out and gives what to hand back to the volume, and whether the kernel has forgotten the node now: then
// the volume is to be let too.
func (t *nodeTable) forget(id, nlookup uint64) (n node, refs uint64, gone bool) {
	s := &t.shards[id%nodeShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.m[id]
	if !ok {
		return node{}, 0, false
	}
	if nlookup >= in.nlookup {
		delete(s.m, id)
		in.vol.leave(id)
		return in.node, in.nlookup, true
	}
	in.nlookup -= nlookup
	s.m[id] = in
	return in.node, nlookup, false
}

// drain takes everything out, and gives it back.
func (t *nodeTable) drain() {
	var all []node
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for _, in := range s.m {
			all = append(all, in.node)
		}
		s.mu.Unlock()
	}
	t.evict(all)
}

// of gives the nodes of a volume that was on loan and was given up. There can be many of others: these are not looked at.
func (t *nodeTable) of(v *volume) []node {
	var all []node
	for _, id := range v.known() {
		s := &t.shards[id%nodeShards]
		s.mu.Lock()
		if in, ok := s.m[id]; ok {
			all = append(all, in.node)
		}
		s.mu.Unlock()
	}
	return all
}

// files gives all inodes that are no directories.
func (t *nodeTable) files() []overlay.Inode {
	var all []overlay.Inode
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for _, in := range s.m {
			if !in.Inode.IsDir() {
				all = append(all, in.Inode)
			}
		}
		s.mu.Unlock()
	}
	return all
}

// evict takes nodes out, whatever the kernel still knows of them, and gives them back.
func (t *nodeTable) evict(nodes []node) {
	for _, n := range nodes {
		t.giveBack(t.forget(n.num(), math.MaxUint64))
	}
}

// giveBack hands back what forget has taken out.
func (t *nodeTable) giveBack(n node, refs uint64, gone bool) {
	if gone && t.gone != nil {
		t.gone(n.num())
	}
	if refs > 0 {
		n.vol.Forget(n.Inode, refs)
	}
	if gone {
		n.vol.let()
	}
}

func (t *nodeTable) len() int {
	n := 0
	for i := range t.shards {
		t.shards[i].mu.Lock()
		n += len(t.shards[i].m)
		t.shards[i].mu.Unlock()
	}
	return n
}
