//go:build linux

package overlay

import (
	"fmt"
	"io"
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// contentReader reads the content that a file had.
type contentReader interface {
	io.Reader
	io.ReaderAt
	io.Closer
}

// openContent opens the content that c is; n is the node of its inode, which may be nil if c is whole. The caller keeps Tree.mu shared until it closes it.
func (t *Tree) openContent(c checkpoint.Content, n *Node) (contentReader, error) {
	if len(c.Parts) == 0 {
		return t.tier.open(c.Ref)
	}
	var under *os.File
	var err error
	if c.Whole() {
		under, err = t.tier.open(c.Ref)
	} else if n == nil {
		err = unix.ENOENT
	} else {
		under, err = t.openForSave(n)
	}
	if err != nil {
		return nil, err
	}
	chain, err := t.tier.openBlocks(c)
	if err != nil {
		_ = under.Close()
		return nil, err
	}
	p := &patched{t: t, content: c, under: under, chain: chain}
	if !c.Whole() {
		p.live = n
	}
	return p, nil
}

// patched is a content with block preimages. One goroutine may use it at a time.
type patched struct {
	t       *Tree
	content checkpoint.Content
	under   *os.File // what the block preimages lie over
	chain   *strategy.Chain
	live    *Node // whose file that is; nil where it is a preimage
	off     int64
}

// ReadAt is io.ReaderAt. Somebody may be writing to the file that it reads, who saves what was there before that: so
// what is underneath is read first, and what is saved after that.
func (p *patched) ReadAt(b []byte, off int64) (n int, err error) {
	size := p.chain.Size()
	if off >= size {
		return 0, io.EOF
	}
	if int64(len(b)) > size-off {
		b, err = b[:size-off], io.EOF
	}
	n, readErr := p.under.ReadAt(b, off)
	if readErr != nil && readErr != io.EOF {
		return 0, readErr
	}
	clear(b[n:])
	if err := p.catchUp(); err != nil {
		return 0, err
	}
	if err := p.chain.Patch(b, off); err != nil {
		return 0, err
	}
	return len(b), err
}

// Read is io.Reader.
func (p *patched) Read(b []byte) (int, error) {
	n, err := p.ReadAt(b, p.off)
	p.off += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// catchUp takes in what the current epoch has saved of the file since it was opened.
func (p *patched) catchUp() error {
	if p.live == nil {
		return nil
	}
	if p.live.contentIn.Load() != uint64(p.t.epoch) && p.t.blocksIn(p.live) == nil {
		return nil
	}
	known := p.content.Parts[len(p.content.Parts)-1]
	if b := p.t.blocksIn(p.live); b != nil && b.ref == known {
		return p.chain.Grow()
	}
	return p.extend(known)
}

// extend puts the record that the current epoch has got meanwhile behind what the content was opened with.
func (p *patched) extend(known strategy.Ref) error {
	var c checkpoint.Content
	has := false
	err := p.t.store.View(func(tx *checkpoint.Tx) (err error) {
		c, has, err = tx.Content(p.t.epoch, p.t.identity(p.live))
		return err
	})
	if err != nil || !has {
		return err
	}
	for i, ref := range c.Parts {
		if ref == known { // it was opened when this process did not know yet what is in there
			if c.Parts = c.Parts[i+1:]; len(c.Parts) == 0 && !c.Whole() {
				return p.chain.Grow()
			}
			break
		}
	}
	all := checkpoint.Content{Ref: c.Ref, Parts: append(append([]strategy.Ref{}, p.content.Parts...), c.Parts...)}
	live := p.live
	if all.Whole() {
		live = nil
	}
	return p.reopen(all, live)
}

// reopen makes the reader one of another content.
func (p *patched) reopen(c checkpoint.Content, live *Node) error {
	chain, err := p.t.tier.openBlocks(c)
	if err != nil {
		return err
	}
	p.chain.Close()
	p.chain, p.content, p.live = chain, c, live
	return nil
}

// Close is io.Closer.
func (p *patched) Close() error {
	p.chain.Close()
	return p.under.Close()
}

// verifyContent proves that every preimage of a content is what was saved, and that they fit what is underneath: the inode
// that holds live bytes, where none of them is whole.
func (t *tiers) verifyContent(c checkpoint.Content, live int64) error {
	for _, ref := range c.Refs() {
		if err := t.verify(ref); err != nil {
			return err
		}
	}
	chain, err := t.openBlocks(c)
	if err != nil || chain == nil {
		return err
	}
	defer chain.Close()
	if c.Whole() {
		live = c.Ref.Size
	}
	return chain.Fits(live)
}

// bytes gives how much a preimage takes up.
func (t *tiers) bytes(ref strategy.Ref) int64 {
	if ref.Blocks {
		return t.blocks.Bytes(ref)
	}
	return ref.Size
}

// restoreContent makes the file dst, which holds what is underneath if no preimage is whole, what it was.
func (t *tiers) restoreContent(c checkpoint.Content, dst *os.File) error {
	if c.Whole() {
		if err := t.restore(c.Ref, dst); err != nil {
			return err
		}
	}
	return t.applyBlocks(c, dst)
}

// materializeContent is materialize for a content that has a whole preimage.
func (t *tiers) materializeContent(c checkpoint.Content, dirfd int, name string, share bool) error {
	if len(c.Parts) == 0 {
		return t.materialize(c.Ref, dirfd, name, share)
	}
	if err := t.materialize(c.Ref, dirfd, name, false); err != nil {
		return err
	}
	fd, err := unix.Openat(dirfd, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		f := os.NewFile(uintptr(fd), name)
		err = t.applyBlocks(c, f)
		_ = f.Close()
	}
	if err != nil {
		_ = unix.Unlinkat(dirfd, name, 0)
		return fmt.Errorf("put blocks over it: %w", err)
	}
	return nil
}
