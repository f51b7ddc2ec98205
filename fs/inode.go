package fs

import (
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
)

// inode is a node that the kernel knows. Its ID there is overlay.Node.Num, which is never used twice.
type inode struct {
	node    *overlay.Node
	nlookup uint64 // replies that named it and were not forgotten; guarded by its shard
}

const nodeShards = 64

// nodeTable has every node that the kernel knows but the root. Its counts mirror those that the tree keeps: each
// reference that a call on the tree adds is entered by ref, each that the kernel forgets leaves by forget. An entry goes when its
// count is zero, under the lock that ref takes: so a node that is looked up again while it is forgotten gets a new one.
type nodeTable struct {
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

// ref enters one reference that the tree has given.
func (t *nodeTable) ref(n *overlay.Node) {
	if n.Num() == fuse.FUSE_ROOT_ID {
		return
	}
	s := &t.shards[n.Num()%nodeShards]
	s.mu.Lock()
	s.m[n.Num()] = inode{n, s.m[n.Num()].nlookup + 1}
	s.mu.Unlock()
}

// get gives the node of an ID, or nil.
func (t *nodeTable) get(id uint64) *overlay.Node {
	s := &t.shards[id%nodeShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[id].node
}

// forget takes references out and gives what to hand back to the tree, and whether the kernel has forgotten the node now.
func (t *nodeTable) forget(id, nlookup uint64) (n *overlay.Node, refs uint64, gone bool) {
	s := &t.shards[id%nodeShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.m[id]
	if !ok {
		return nil, 0, false
	}
	if nlookup >= in.nlookup {
		delete(s.m, id)
		return in.node, in.nlookup, true
	}
	in.nlookup -= nlookup
	s.m[id] = in
	return in.node, nlookup, false
}

// drain takes everything out.
func (t *nodeTable) drain(each func(n *overlay.Node, refs uint64)) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		m := s.m
		s.m = map[uint64]inode{}
		s.mu.Unlock()
		for _, in := range m {
			each(in.node, in.nlookup)
		}
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
