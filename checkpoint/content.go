package checkpoint

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/hyperfs/hyperfs/strategy"
)

// Content is the value of a content record: what it takes to have back the bytes that an inode held. Parts are block preimages, the
// earliest first, and lie over the whole preimage Ref; where there is none, over what the inode holds in the state that follows the last epoch of the record.
type Content struct {
	Ref   strategy.Ref // zero where there is none
	Parts []strategy.Ref
}

// Whole reports whether the content depends on nothing else any more.
func (c Content) Whole() bool { return c.Ref.Tier != "" }

// Refs gives all preimages of the content.
func (c Content) Refs() []strategy.Ref {
	if !c.Whole() {
		return c.Parts
	}
	return append(slices.Clone(c.Parts), c.Ref)
}

// take puts what the record of a later epoch says behind c. It does not change what later has.
func (c *Content) take(later Content) {
	if !c.Whole() {
		c.Ref, c.Parts = later.Ref, append(c.Parts, later.Parts...)
	}
}

// partsVersion is the first byte of a content record with parts. Without, it has recordVersion, as it always had.
const partsVersion = 2

func (c Content) encode() []byte { return c.append(make([]byte, 0, 64)) }

func (c Content) append(b []byte) []byte {
	if len(c.Parts) == 0 {
		b = append(b, recordVersion)
	} else {
		b = append(b, partsVersion)
		b = binary.AppendUvarint(b, uint64(len(c.Parts)))
		for _, p := range c.Parts {
			b = appendString(b, string(p.Tier))
			b = appendString(b, p.Name)
			b = binary.AppendVarint(b, p.Size)
		}
		if !c.Whole() {
			return b
		}
	}
	b = appendString(b, string(c.Ref.Tier))
	b = appendString(b, c.Ref.Name)
	b = binary.AppendVarint(b, c.Ref.Size)
	b = binary.AppendVarint(b, c.Ref.Mtime)
	if c.Ref.HasSum {
		b = binary.BigEndian.AppendUint64(b, c.Ref.Sum)
	}
	return b
}

func decodeContent(v []byte) (Content, error) {
	var c Content
	d := &decoder{b: v}
	switch version := d.byte(); {
	case d.err != nil:
		return c, d.err
	case version == partsVersion:
		if c.Parts = decodeParts(d); d.err != nil || len(d.b) == 0 {
			return c, d.err
		}
	case version != recordVersion:
		return c, fmt.Errorf("content record has version %d, this hyperfs knows %d", version, partsVersion)
	}
	c.Ref.Tier, c.Ref.Name = strategy.Kind(d.string()), d.string()
	c.Ref.Size, c.Ref.Mtime = d.varint(), d.varint()
	if d.err == nil && len(d.b) >= 8 {
		c.Ref.Sum, c.Ref.HasSum = binary.BigEndian.Uint64(d.take(8)), true
	}
	return c, d.err
}

func decodeParts(d *decoder) (parts []strategy.Ref) {
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		parts = append(parts, strategy.Ref{Tier: strategy.Kind(d.string()), Name: d.string(), Size: d.varint(), Blocks: true})
	}
	return parts
}

// joinedContent is what becomes of the content records of one inode.
type joinedContent struct {
	first []byte   // the key that stays
	later [][]byte // those that are taken in
	Content
}

// joinContents takes later content records of the epochs from ≤ e < to into the earliest one of their inode until that is whole. Each inode's are
// changed as one: there is no moment at which a preimage that is needed has no record.
func (s *Store) joinContents(from, to Epoch) error {
	byID := map[string]*joinedContent{}
	err := s.View(func(tx *Tx) error {
		return tx.eachEpoch(keyContent, from, to, func(key, v []byte) error {
			c, err := decodeContent(v)
			if err != nil {
				return err
			}
			j := byID[string(key[9:])]
			switch {
			case j == nil:
				byID[string(key[9:])] = &joinedContent{first: slices.Clone(key), Content: c}
			case !j.Whole():
				j.take(c)
				j.later = append(j.later, slices.Clone(key))
			}
			return nil
		})
	})
	for _, j := range byID {
		if err == nil && len(j.later) > 0 {
			err = s.Update(j.write)
		}
	}
	return err
}

func (j *joinedContent) write(tx *Tx) error {
	for _, key := range j.later {
		if err := tx.delete(key); err != nil {
			return err
		}
	}
	return tx.Set(j.first, j.encode())
}

// InEpoch is a content record.
type InEpoch struct {
	Epoch Epoch
	ID    ID // as the record has it: of a regular file, for which there are no aliases
	Content
}

// Joined gives the content records of the epochs from ≤ e < to that name several block preimages.
func (s *Store) Joined(from, to Epoch) (list []InEpoch, err error) {
	err = s.View(func(tx *Tx) error {
		return tx.eachEpoch(keyContent, from, to, func(key, v []byte) error {
			c, err := decodeContent(v)
			if err == nil && len(c.Parts) > 1 {
				list = append(list, InEpoch{keyEpoch(key), decodeID(key[9:]), c})
			}
			return err
		})
	})
	return list, err
}
