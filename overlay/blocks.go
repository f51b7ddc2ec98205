//go:build linux

package overlay

import (
	"errors"
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// A large old file that is changed in place is kept block by block: before the first change of an epoch to any of its blocks, that block goes to a block
// preimage, and before the first change to the file at all, its length does, with the record that names the preimage. So the
// order is as for any content: first the bytes are safe, then the record names them, then the change is made; later blocks are safe
// before they are changed, and need no record of their own.

const (
	// largeMin is the size, in bytes, from which a file is large: it is not copied whole, neither when it is opened for writing nor when it is written to.
	// A single changed block is cheaper to keep than the whole from 128 KiB on; but up to here it is less than what a few writes gain that bypass the daemon.
	largeMin = 512 << 10
	// blockSize is how many bytes of a large file are saved at least: what databases write at once. Larger blocks of them keep up to four and sixteen
	// times as much, and take as long.
	blockSize = 4 << 10
	// aheadMax is how many bytes are saved at most before they are asked for: see savedBlocks.ahead.
	aheadMax = 256 << 10
)

// savedBlocks is what an epoch has of a file that is kept block by block.
type savedBlocks struct {
	epoch  checkpoint.Epoch
	id     checkpoint.ID
	ref    strategy.Ref
	blocks *blockSet

	next, run int64 // where the last save ended, and how much the saves before it have in one piece; guarded by Node.mu
}

// blocksIn gives what the current epoch has of n by blocks; nil if it is not known to have anything.
func (t *Tree) blocksIn(n *Node) *savedBlocks {
	if b := n.blocks.Load(); b != nil && b.epoch == t.epoch {
		return b
	}
	return nil
}

// isSafe reports whether a change of the bytes in s needs nothing to be saved.
func (t *Tree) isSafe(n *Node, s span) bool {
	e := uint64(t.epoch)
	if !t.protecting || !n.regular || n.contentIn.Load() == e || n.newIn.Load() == e {
		return true
	}
	b := t.blocksIn(n)
	return b != nil && b.blocks.has(s)
}

// protectSpan makes the bytes in s safe, with the length and the attributes of the file. The caller holds n.mu.
func (t *Tree) protectSpan(n *Node, s span) error {
	if t.isSafe(n, s) {
		return nil
	}
	b := t.blocksIn(n)
	if b == nil {
		done, found, err := t.savedBefore(n)
		if err != nil || done {
			return err
		}
		if b = found; b == nil {
			return t.saveFirst(n, s)
		}
	}
	return t.saveMore(n, b, s)
}

// savedBefore looks up what the log says of the content of n: done, if nothing has to be saved any more, or the blocks that it has.
func (t *Tree) savedBefore(n *Node) (done bool, b *savedBlocks, err error) {
	id := t.identity(n)
	var c checkpoint.Content
	has := false
	err = t.record(func(l *logTx) error {
		if done, err = t.isNew(l, n); err != nil || done {
			return err
		}
		if c, has, err = l.Content(t.epoch, id); err == nil && c.Whole() {
			done = true
			l.mark(&n.contentIn, uint64(t.epoch))
		}
		return err
	})
	if err != nil || done || !has {
		return done, nil, err
	}
	if b, err = t.loadBlocks(id, c.Parts[len(c.Parts)-1]); err != nil {
		t.log.Error("a block preimage can't be added to", "err", err)
		return false, nil, plainErrno(err)
	}
	n.blocks.Store(b)
	return false, b, nil
}

// loadBlocks finds out which blocks a preimage has that an earlier process has begun, or that nobody has needed for a while.
func (t *Tree) loadBlocks(id checkpoint.ID, ref strategy.Ref) (*savedBlocks, error) {
	chain, err := t.tier.blocks.OpenChain([]strategy.Ref{ref})
	if err != nil {
		return nil, err
	}
	defer chain.Close()
	b := t.newSavedBlocks(id, ref)
	for _, e := range chain.Saved() {
		b.blocks.add(span{e.From, e.To})
	}
	return b, nil
}

func (t *Tree) newSavedBlocks(id checkpoint.ID, ref strategy.Ref) *savedBlocks {
	return &savedBlocks{epoch: t.epoch, id: id, ref: ref, blocks: newBlockSet(ref.Size, t.blockSize), next: -1}
}

// saveFirst saves and records what the epoch has nothing of yet: the bytes in s of a large file, else the whole.
func (t *Tree) saveFirst(n *Node, s span) error {
	if err := t.protectXattrs(n); err != nil { // a write takes capabilities away
		return err
	}
	var st unix.Statx_t
	if err := t.statOpen(n, nil, &st); err != nil {
		return err
	}
	size := int64(st.Size)
	if size <= t.largeMin || s.from == 0 && s.to >= size {
		return t.saveContent(n, nil)
	}
	if t.cheapSave() {
		if err := t.saveContentBy(n, nil, t.clone); err != strategy.ErrNoClone {
			return err
		}
	}
	return t.saveBlocks(n, size, s)
}

// clone puts content away whole if it need not be copied for that; else it is ErrNoClone.
func (t *Tree) clone(f *os.File, id checkpoint.ID) (checkpoint.Content, error) {
	if tier, ok := t.tier.saver().(strategy.Cloner); ok {
		ref, err := tier.Clone(f, t.preimageName(id))
		if err == nil {
			return checkpoint.Content{Ref: ref}, nil
		}
		if errors.Is(err, strategy.ErrNoClone) {
			return checkpoint.Content{}, strategy.ErrNoClone
		}
	}
	return t.save(f, id) // which finds another tier, where this one has failed
}

// saveBlocks begins a block preimage of n with the blocks in s, and records it.
func (t *Tree) saveBlocks(n *Node, size int64, s span) error {
	src, err := t.openForSave(n)
	if err != nil {
		return err
	}
	defer src.Close()
	b, err := t.newPreimage(t.identity(n), src, size, s)
	if err != nil {
		return t.blocksFailed(n, nil, err)
	}
	crash.Point("content-saved")
	if err := t.recordContent(n, checkpoint.Content{Parts: []strategy.Ref{b.ref}}, nil); err != nil {
		_ = t.tier.remove(b.ref)
		return err
	}
	crash.Point("content-recorded")
	n.blocks.Store(b)
	return nil
}

// newPreimage makes a block preimage of src, which has size bytes, with all blocks in the spans. On an error nothing is left.
func (t *Tree) newPreimage(id checkpoint.ID, src *os.File, size int64, spans ...span) (*savedBlocks, error) {
	w, err := t.tier.blocks.Create(t.preimageName(id), size)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	b := t.newSavedBlocks(id, w.Ref())
	if err := b.save(w, src, spans); err != nil {
		_ = t.tier.remove(b.ref)
		return nil, err
	}
	return b, nil
}

// saveMore adds the blocks in s to the preimage that the epoch has.
func (t *Tree) saveMore(n *Node, b *savedBlocks, s span) error {
	if b.blocks.has(s) { // it may just have been loaded
		return nil
	}
	src, err := t.openForSave(n)
	if err != nil {
		return err
	}
	defer src.Close()
	w, err := t.tier.blocks.Append(b.ref)
	if err == nil {
		err = b.save(w, src, []span{b.ahead(s)})
		w.Close()
	}
	if err != nil {
		return t.blocksFailed(n, b, err)
	}
	crash.Point("blocks-saved")
	if b.blocks.has(allBytes) {
		n.contentIn.Store(uint64(t.epoch))
	}
	return nil
}

// ahead gives what is to be saved where s has to be. Somebody who goes through the file in small steps has as much saved ahead of them as there was
// in one piece before, so that not each step has to wait: at most twice what they overwrite. In other places no more than asked for is saved.
func (b *savedBlocks) ahead(s span) span {
	first, end := b.blocks.blocks(s)
	from, to := first*b.blocks.block, end*b.blocks.block
	if from >= to || s.to == toEnd {
		return s
	}
	if from != b.next {
		b.run = 0
	}
	more := min(b.run, aheadMax)
	b.run += to - from + more
	b.next = to + more
	return span{from, b.next}
}

// save saves the blocks in the spans that b lacks. b has them when they are committed.
func (b *savedBlocks) save(w *strategy.BlockWriter, src *os.File, spans []span) error {
	var saved []span
	for _, s := range spans {
		for rest := s.within(b.ref.Size); ; {
			next, more := b.blocks.missing(rest)
			if !more {
				break
			}
			if err := w.Save(src, next.from, next.to); err != nil {
				return err
			}
			saved = append(saved, next)
			rest.from = next.to
		}
	}
	crash.Point("blocks-added")
	if err := w.Commit(); err != nil {
		return err
	}
	for _, s := range saved {
		b.blocks.add(s)
	}
	return nil
}

// blocksFailed is what the program gets if blocks can't be saved. Where whole preimages go to RAM, one that holds what is not among the blocks b
// can still stand in.
func (t *Tree) blocksFailed(n *Node, b *savedBlocks, cause error) error {
	t.log.Error("blocks of a file can't be saved", "err", cause)
	if !tierFailed(cause) {
		return plainErrno(cause)
	}
	if !t.tier.Kind().Volatile() {
		return plainErrno(noTierLeft(cause))
	}
	return t.saveContent(n, b)
}
