//go:build linux

package overlay

import (
	"bytes"
	"io"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/strategy"
)

// between gives the block preimages that lead from one content of an inode to a later one: outside of what they saved, both are the same. ok is
// false where that can't be said.
func between(was, is checkpoint.Content) (parts []strategy.Ref, ok bool) {
	k := len(was.Parts) - len(is.Parts)
	if k < 0 || was.Ref != is.Ref || !slices.Equal(was.Parts[k:], is.Parts) {
		return nil, false
	}
	return was.Parts[:k], true
}

// blocksDiffer compares the contents of an inode in two states, that have the same size, where one was kept block by block since
// the other. known is false where it was not.
func (d *differ) blocksDiffer(id checkpoint.ID) (differ, known bool, err error) {
	a, b := d.a.fold.Contents[id], d.b.fold.Contents[id]
	parts, ok := between(a, b)
	if !ok {
		parts, ok = between(b, a)
	}
	if _, outside := d.a.fold.Outside[id]; !ok || outside { // then something else may have changed, too
		return false, false, nil
	}
	if len(parts) == 0 {
		return false, true, nil
	}
	chain, err := d.a.t.tier.blocks.OpenChain(parts)
	if err != nil {
		return false, true, err
	}
	defer chain.Close()
	fa, err := d.a.open(id)
	if err != nil {
		return false, true, err
	}
	defer fa.Close()
	fb, err := d.b.open(id)
	if err != nil {
		return false, true, err
	}
	defer fb.Close()
	for _, e := range chain.Saved() {
		same, err := sameRange(fa, fb, e)
		if err != nil || !same {
			return true, true, err
		}
	}
	return false, true, nil
}

// sameRange compares a range of two contents.
func sameRange(a, b io.ReaderAt, e strategy.Extent) (bool, error) {
	bufA, bufB := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := e.From; at < e.To; at += int64(len(bufA)) {
		size := min(int64(len(bufA)), e.To-at)
		n, err := a.ReadAt(bufA[:size], at)
		if err != nil && err != io.EOF {
			return false, err
		}
		m, err := b.ReadAt(bufB[:size], at)
		if err != nil && err != io.EOF {
			return false, err
		}
		if !bytes.Equal(bufA[:n], bufB[:m]) {
			return false, nil
		}
	}
	return true, nil
}
