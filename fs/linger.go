package fs

import "time"

const (
	firstLook = time.Millisecond // until the kernel is through with a close
	lastLook  = time.Second
)

// linger releases the file that was open for writing last, as soon as no mapping can write to it any more. A
// mapping of a passthrough file holds the file underneath, not ours: the kernel says that ours is closed while it can still be
// changed through the mapping. Until the handle is released, the tree makes a preimage of the file at each snapshot.
//
// There is no word when a mapping ends, so it looks again after a while. The caller holds oi.mu.
func (t *openInodes) linger(oi *openInode, again time.Duration) {
	f := oi.mapped
	if f == nil || len(oi.files) > 0 { // the last close comes here again
		return
	}
	if t.onlyOurs(f.Fd()) {
		oi.mapped = nil
		t.release(f)
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

// drain gives up what lingers.
func (t *openInodes) drain() {
	t.mu.Lock()
	var all []*openInode
	for _, oi := range t.byNode {
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
