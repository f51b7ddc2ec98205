//go:build linux

package overlay

import (
	"errors"
	"fmt"
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/strategy"
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
func (t *Tree) protectSpan(n *Node, s span, by opened) error {
	if t.isSafe(n, s) {
		return nil
	}
	if b := t.blocksIn(n); b != nil {
		return t.saveMore(n, b, s, by)
	}
	by, done, err := t.forSaving(n, by)
	if err != nil {
		return err
	}
	defer done()
	size := int64(by.st.Size)
	if size > t.largeMin && (s.from > 0 || s.to < size) {
		return t.saveLarge(n, s, by)
	}
	c, err := t.saveWhole(n, by)
	if err != nil || c == nil {
		return err
	}
	b, err := t.loadBlocks(n, *c)
	if err != nil {
		return err
	}
	return t.saveMore(n, b, s, by)
}

// saveLarge saves the bytes in s of a large file.
func (t *Tree) saveLarge(n *Node, s span, by opened) error {
	done, b, err := t.savedBefore(n)
	if err != nil || done {
		return err
	}
	if b != nil {
		return t.saveMore(n, b, s, by)
	}
	if err := t.protectXattrs(n); err != nil { // a write takes capabilities away
		return err
	}
	if t.cheapSave() {
		if err := t.saveClone(n, by); err != strategy.ErrNoClone {
			return err
		}
	}
	return t.saveBlocks(n, s, by)
}

// savedBefore looks up what the log says of the content of n: done, if nothing has to be saved any more, or the blocks that it has.
func (t *Tree) savedBefore(n *Node) (done bool, b *savedBlocks, err error) {
	var c checkpoint.Content
	has := false
	err = t.record(func(l *logTx) error {
		if done, err = t.isNew(l, n); err != nil || done {
			return err
		}
		if c, has, err = l.Content(t.epoch, t.identity(n)); err == nil && c.Whole() {
			done = true
			l.mark(&n.contentIn, uint64(t.epoch))
		}
		return err
	})
	if err != nil || done || !has {
		return done, nil, err
	}
	b, err = t.loadBlocks(n, c)
	return false, b, err
}

// loadBlocks finds out which blocks the current epoch has of a content, whose preimage an earlier process has begun, or nobody has needed for a while.
func (t *Tree) loadBlocks(n *Node, c checkpoint.Content) (*savedBlocks, error) {
	chain, err := t.tier.openBlocks(c)
	if err == nil && chain == nil {
		err = fmt.Errorf("its record names none: %w", strategy.ErrCorrupt)
	}
	if err != nil {
		t.log.Error("a block preimage can't be added to", "err", err)
		return nil, plainErrno(err)
	}
	defer chain.Close()
	b := t.newSavedBlocks(c.Parts[0]) // an epoch that has not ended has one
	for _, e := range chain.Saved() {
		b.blocks.add(span{e.From, e.To})
	}
	n.blocks.Store(b)
	return b, nil
}

func (t *Tree) newSavedBlocks(ref strategy.Ref) *savedBlocks {
	return &savedBlocks{epoch: t.epoch, ref: ref, blocks: newBlockSet(ref.Size, t.blockSize), next: -1}
}

// saveClone puts content away whole if it need not be copied for that; else it is ErrNoClone.
func (t *Tree) saveClone(n *Node, by opened) error {
	tier, ok := t.tier.saver().(strategy.Cloner)
	if !ok {
		return strategy.ErrNoClone
	}
	src, err := dupFile(by.fd)
	if err != nil {
		return err
	}
	defer src.Close()
	ref, err := tier.Clone(src, t.preimageName(t.identity(n)))
	if errors.Is(err, strategy.ErrNoClone) {
		return strategy.ErrNoClone
	}
	if err != nil { // which finds another tier, where this one has failed
		return t.saveRest(n, nil, by)
	}
	t.tier.saved.add(string(ref.Tier), ref.Size)
	crash.Point("content-saved")
	return t.recordRest(n, checkpoint.Content{Ref: ref})
}

// saveRest puts the content of n away whole, over the blocks b that the epoch has already; nil where there are none.
func (t *Tree) saveRest(n *Node, b *savedBlocks, by opened) error {
	c, err := t.save(by.fd, int64(by.st.Size), t.identity(n))
	if err != nil {
		return err
	}
	crash.Point("content-saved")
	if b != nil {
		c.Parts = []strategy.Ref{b.ref}
	}
	return t.recordRest(n, c)
}

// recordRest records a content after which nothing more has to be saved.
func (t *Tree) recordRest(n *Node, c checkpoint.Content) error {
	err := t.recordContent(n, c, func(l *logTx) { l.mark(&n.contentIn, uint64(t.epoch)) })
	if err != nil {
		_ = t.tier.remove(c.Ref)
		return err
	}
	crash.Point("content-recorded")
	return nil
}

// saveBlocks begins a block preimage of n with the blocks in s, and records it.
func (t *Tree) saveBlocks(n *Node, s span, by opened) error {
	src, err := dupFile(by.fd)
	if err != nil {
		return err
	}
	defer src.Close()
	b, err := t.newPreimage(t.identity(n), src, int64(by.st.Size), s)
	if err != nil {
		return t.blocksFailed(n, nil, by, err)
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
	b := t.newSavedBlocks(w.Ref())
	bytes, err := b.save(w, src, spans)
	if err != nil {
		_ = t.tier.remove(b.ref)
		return nil, err
	}
	t.tier.saved.add(keptBlocks, bytes)
	return b, nil
}

// saveMore adds the blocks in s to the preimage that the epoch has.
func (t *Tree) saveMore(n *Node, b *savedBlocks, s span, by opened) error {
	if b.blocks.has(s) { // it may just have been loaded
		return nil
	}
	by, done, err := t.forSaving(n, by)
	if err != nil {
		return err
	}
	defer done()
	src, err := dupFile(by.fd)
	if err != nil {
		return err
	}
	defer src.Close()
	var bytes int64
	w, err := t.tier.blocks.Append(b.ref)
	if err == nil {
		bytes, err = b.save(w, src, []span{b.ahead(s)})
		w.Close()
	}
	if err != nil {
		return t.blocksFailed(n, b, by, err)
	}
	t.tier.saved.add(keptBlocks, bytes)
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

// save saves the blocks in the spans that b lacks, and gives how many bytes these are. b has them when they are committed.
func (b *savedBlocks) save(w *strategy.BlockWriter, src *os.File, spans []span) (bytes int64, err error) {
	var saved []span
	for _, s := range spans {
		for rest := s.within(b.ref.Size); ; {
			next, more := b.blocks.missing(rest)
			if !more {
				break
			}
			if err := w.Save(src, next.from, next.to); err != nil {
				return 0, err
			}
			saved = append(saved, next)
			bytes += next.to - next.from
			rest.from = next.to
		}
	}
	crash.Point("blocks-added")
	if err := w.Commit(); err != nil {
		return 0, err
	}
	for _, s := range saved {
		b.blocks.add(s)
	}
	return bytes, nil
}

// blocksFailed is what the program gets if blocks can't be saved. Where whole preimages go to RAM, one that holds what is not among the blocks b
// can still stand in.
func (t *Tree) blocksFailed(n *Node, b *savedBlocks, by opened, cause error) error {
	t.log.Error("blocks of a file can't be saved", "err", cause)
	if !tierFailed(cause) {
		return plainErrno(cause)
	}
	if !t.tier.Kind().Volatile() {
		return plainErrno(noTierLeft(cause))
	}
	return t.saveRest(n, b, by)
}
