//go:build linux

package overlay

import (
	"errors"
	"io"
	"os"
	"slices"

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

// openContent opens the content that c is: n is the node of its inode, which may be nil if c is whole. The caller keeps Tree.mu shared until it
// closes it.
func (t *Tree) openContent(c checkpoint.Content, n *Node) (contentReader, error) {
	if c.Whole() && len(c.Parts) == 0 {
		return t.tier.open(c.Ref)
	}
	p := &patched{t: t, live: n}
	if err := p.switchTo(c); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// patched is a content with block preimages, or that may get some while it is being read. One goroutine may use it at a time.
type patched struct {
	t       *Tree
	content checkpoint.Content
	under   *os.File        // what the block preimages lie over
	chain   *strategy.Chain // nil as long as there are none
	live    *Node           // whose file under is; nil where it is a preimage
	off     int64
}

// switchTo makes it another content, of the same file.
func (p *patched) switchTo(c checkpoint.Content) (err error) {
	under := p.under
	switch {
	case c.Whole():
		under, err = p.t.tier.open(c.Ref)
	case under != nil:
	case p.live == nil:
		err = unix.ENOENT
	default:
		under, err = p.t.openFile(p.live)
	}
	if err != nil {
		return err
	}
	if p.under != nil && p.under != under {
		_ = p.under.Close()
	}
	p.under = under
	chain, err := p.t.tier.openBlocks(c)
	if err != nil {
		return err
	}
	if p.chain != nil {
		p.chain.Close()
	}
	p.chain, p.content = chain, c
	if c.Whole() {
		p.live = nil
	}
	return nil
}

// ReadAt is io.ReaderAt. Somebody may be writing to the file that it reads, who saves what was there before that: so
// what is underneath is read first, and what is saved after that.
func (p *patched) ReadAt(b []byte, off int64) (int, error) {
	under := p.under
	n, err := under.ReadAt(b, off)
	if err == nil || err == io.EOF {
		err = errors.Join(noEOF(err), p.catchUp())
	}
	if err == nil && p.under != under {
		n, err = p.under.ReadAt(b, off)
	}
	if noEOF(err) != nil {
		return 0, err
	}
	if p.chain != nil {
		if n, err = p.patch(b, n, off); err != nil {
			return 0, err
		}
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

// patch makes b, of which n bytes were read underneath, what the chain says, and gives how many bytes that are.
func (p *patched) patch(b []byte, n int, off int64) (int, error) {
	left := max(p.chain.Size()-off, 0)
	b = b[:min(int64(len(b)), left)]
	clear(b[min(n, len(b)):])
	return len(b), p.chain.Patch(b, off)
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
	b := p.t.blocksIn(p.live)
	if b == nil && p.live.contentIn.Load() != uint64(p.t.epoch) {
		return nil
	}
	if k := len(p.content.Parts); k > 0 && b != nil && b.ref == p.content.Parts[k-1] {
		return p.chain.Grow()
	}
	return p.extend()
}

// extend puts the record that the current epoch has got meanwhile behind what the content was opened with.
func (p *patched) extend() error {
	var c checkpoint.Content
	err := p.t.store.View(func(tx *checkpoint.Tx) (err error) {
		c, _, err = tx.Content(p.t.epoch, p.t.identity(p.live))
		return err
	})
	if err != nil {
		return err
	}
	all := checkpoint.Content{Ref: c.Ref, Parts: slices.Clone(p.content.Parts)}
	for _, ref := range c.Parts {
		if !slices.Contains(all.Parts, ref) {
			all.Parts = append(all.Parts, ref)
		}
	}
	if len(all.Parts) == len(p.content.Parts) && !all.Whole() {
		if p.chain == nil {
			return nil
		}
		return p.chain.Grow()
	}
	return p.switchTo(all)
}

// Close is io.Closer.
func (p *patched) Close() error {
	if p.chain != nil {
		p.chain.Close()
	}
	return p.under.Close() // nil says that it is not valid
}
