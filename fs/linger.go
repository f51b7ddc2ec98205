package fs

import (
	"time"

	"github.com/hyperfs/hyperfs/overlay"
)

const (
	firstLook = time.Millisecond // until the kernel is through with a close
	lastLook  = time.Second
)

// linger releases the file that was open for writing last, as soon as no mapping can write to it any more. A
// mapping of a passthrough file holds the file underneath, not ours: the kernel says that ours is closed while it can still be
// changed through the mapping. Until the handle is released, the tree makes a preimage of the file at each snapshot. A file that nobody has
// had open for reading and writing since it was settled last needs none of that.
//
// There is no word when a mapping ends, so it looks again after a while. The caller holds oi.mu.
func (t *openInodes) linger(oi *openInode, again time.Duration) {
	f := oi.mapped
	if f == nil || len(oi.files) > 0 || t.settle(oi) { // the last close comes here again
		return
	}
	time.AfterFunc(again, func() {
		oi.mu.Lock()
		defer oi.mu.Unlock()
		if oi.mapped == f {
			t.linger(oi, min(2*again, lastLook))
		}
	})
}

// settle releases what lingers if no mapping can write to it any more. The caller holds oi.mu.
func (t *openInodes) settle(oi *openInode) bool {
	f := oi.mapped
	if !t.onlyOurs(f.Fd()) {
		return false
	}
	oi.mapped, oi.mappable = nil, false
	t.release(f)
	return true
}

// settleNow is settle for an inode that somebody wants to know of at once.
func (t *openInodes) settleNow(n overlay.Inode) {
	t.mu.Lock()
	oi := t.byNum[n.Num()]
	t.mu.Unlock()
	if oi == nil {
		return
	}
	oi.mu.Lock()
	defer oi.mu.Unlock()
	if oi.mapped != nil && len(oi.files) == 0 {
		t.settle(oi)
	}
}

// drain gives up what lingers.
func (t *openInodes) drain() {
	t.mu.Lock()
	var all []*openInode
	for _, oi := range t.byNum {
		all = append(all, oi)
	}
	t.mu.Unlock()
	for _, oi := range all {
		oi.mu.Lock()
		if f := oi.mapped; f != nil {
			oi.mapped = nil
			t.release(f)
		}
		oi.mu.Unlock()
	}
}
