//go:build linux

package overlay

import (
	"fmt"
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// openBlocks opens the block preimages of a content; nil where there are none.
func (t *tiers) openBlocks(c checkpoint.Content) (*strategy.Chain, error) {
	if len(c.Parts) == 0 {
		return nil, nil
	}
	return t.blocks.OpenChain(c.Parts)
}

// applyBlocks puts what the block preimages of a content have over the file dst, which holds what is underneath.
func (t *tiers) applyBlocks(c checkpoint.Content, dst *os.File) error {
	chain, err := t.openBlocks(c)
	if err != nil || chain == nil {
		return err
	}
	defer chain.Close()
	return chain.Apply(dst)
}

// verifyContent proves that every preimage of a content is what was saved, and that they fit what is underneath: the inode
// that holds live bytes, where none of them is whole. verify does it for one.
func (t *tiers) verifyContent(c checkpoint.Content, live int64, verify func(strategy.Ref) error) error {
	for _, ref := range c.Refs() {
		if err := verify(ref); err != nil {
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
