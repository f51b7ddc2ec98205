package strategy

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sort"

	"github.com/hyperfs/hyperfs/internal/crash"
)

// Chain is the content that a file had before all changes that some block preimages were made for, the earliest first: what is underneath, with
// what they saved over it. Underneath is a whole preimage, or the file itself. A byte is what the earliest of them says; what none saved was
// never changed. One goroutine may use it at a time; end it with Close.
type Chain struct {
	b     *Blocks
	parts []part
	open  []int // the parts that are open now, the longest first
	size  int64
	saved []stretch // sorted, without overlaps
}

// part is one block preimage of a chain.
type part struct {
	ref    Ref
	h      header
	f      file
	isOpen bool
}

// maxOpen is how many parts a chain keeps open: there can be as many as checkpoints.
const maxOpen = 16

// stretch is a range of the content that a part has.
type stretch struct {
	off, len int64
	at       int64 // of its bytes in the part; 0 for a hole
	part     int
}

func (s stretch) end() int64 { return s.off + s.len }

// behind is what is left of s from an offset on.
func (s stretch) behind(off int64) stretch {
	cut := off - s.off
	if s.at != 0 {
		s.at += cut
	}
	s.off, s.len = off, s.len-cut
	return s
}

// OpenChain opens block preimages of one file, the earliest first, of which there is at least one. Damage of their bytes is left to Verify.
func (b *Blocks) OpenChain(refs []Ref) (*Chain, error) {
	c := &Chain{b: b}
	for i, ref := range refs {
		if err := c.add(ref); err != nil {
			c.Close()
			return nil, failed("open", refs[i].Name, err)
		}
	}
	return c, nil
}

// add puts a part behind the others.
func (c *Chain) add(ref Ref) error {
	c.parts = append(c.parts, part{ref: ref})
	i := len(c.parts) - 1
	f, err := c.file(i)
	if err != nil {
		return err
	}
	h, err := readHeader(f, ref)
	if err != nil {
		return err
	}
	c.parts[i].h = h
	if i == 0 {
		c.size = h.size
	} else if err := c.fits(h.size); err != nil {
		return err
	}
	return c.index(i, headerLen)
}

// file gives the file of a part, which stays open until others have been asked for.
func (c *Chain) file(i int) (file, error) {
	p := &c.parts[i]
	if p.isOpen {
		return p.f, nil
	}
	if len(c.open) == maxOpen {
		c.close(c.open[0])
		c.open = slices.Delete(c.open, 0, 1)
	}
	f, _, err := c.b.open(p.ref)
	if err != nil {
		return file{}, err
	}
	p.f, p.isOpen = f, true
	c.open = append(c.open, i)
	return f, nil
}

func (c *Chain) close(i int) {
	_ = c.parts[i].f.close()
	c.parts[i].isOpen = false
}

// index puts the entries of a part from a place on under what the chain has.
func (c *Chain) index(i int, from int64) error {
	f, err := c.file(i)
	if err != nil {
		return err
	}
	var list []stretch
	err = eachEntry(f, c.parts[i].h, from, func(e entry, _ []byte) error {
		s := stretch{e.off, min(e.len, c.size-e.off), 0, i}
		if e.kind == kindData {
			s.at = e.dataAt()
		}
		if s.len > 0 {
			list = append(list, s)
		}
		return nil
	})
	slices.SortStableFunc(list, func(a, b stretch) int { return cmp.Compare(a.off, b.off) })
	c.saved = under(c.saved, list)
	return err
}

// under adds to top what low, sorted too, has between its stretches.
func under(top, low []stretch) []stretch {
	all := make([]stretch, 0, len(top)+len(low))
	i, done := 0, int64(0) // of low; all before that offset is in there
	for _, s := range low {
		if s.off < done {
			if s.end() <= done {
				continue
			}
			s = s.behind(done)
		}
		done = s.end()
		for s.len > 0 {
			for i < len(top) && top[i].end() <= s.off {
				all = append(all, top[i])
				i++
			}
			if i == len(top) || top[i].off >= s.end() {
				all = append(all, s)
				break
			}
			if t := top[i]; t.off > s.off {
				head := s
				head.len = t.off - s.off
				all = append(all, head)
			}
			s = s.behind(min(top[i].end(), s.end()))
		}
	}
	return append(all, top[i:]...)
}

// fits proves that what is underneath, size bytes, holds all that no part has.
func (c *Chain) fits(size int64) error {
	end := c.size // of what no part has
	for i := len(c.saved) - 1; i >= 0 && c.saved[i].end() == end; i-- {
		end = c.saved[i].off
	}
	if end > size {
		return fmt.Errorf("%w: what it belongs to has %d bytes and should have at least %d", ErrCorrupt, size, end)
	}
	return nil
}

// Fits is an error (ErrCorrupt) if what is underneath, which has size bytes, lacks something that no preimage has.
func (c *Chain) Fits(size int64) error { return failed("fit", c.last().ref.Name, c.fits(size)) }

func (c *Chain) last() *part { return &c.parts[len(c.parts)-1] }

// Size is how many bytes the content has.
func (c *Chain) Size() int64 { return c.size }

// Extent is a range of bytes.
type Extent struct{ From, To int64 }

// Saved gives the ranges that the preimages have, in order.
func (c *Chain) Saved() []Extent {
	var list []Extent
	for _, s := range c.saved {
		if k := len(list) - 1; k >= 0 && list[k].To == s.off {
			list[k].To = s.end()
		} else {
			list = append(list, Extent{s.off, s.end()})
		}
	}
	return list
}

// Piece is a range of bytes that a chain has.
type Piece struct {
	Extent
	Hole bool // there are no bytes but zeros, which were not allocated
}

// Pieces gives what the preimages have, in order.
func (c *Chain) Pieces() []Piece {
	list := make([]Piece, len(c.saved))
	for i, s := range c.saved {
		list[i] = Piece{Extent{s.off, s.end()}, s.at == 0}
	}
	return list
}

// Grow takes in what was added to the last preimage since.
func (c *Chain) Grow() error {
	return failed("read", c.last().ref.Name, c.grow(len(c.parts)-1))
}

func (c *Chain) grow(i int) error {
	f, err := c.file(i)
	if err != nil {
		return err
	}
	h, err := readHeader(f, c.parts[i].ref)
	if err != nil || h.committed == c.parts[i].h.committed {
		return err
	}
	from := c.parts[i].h.committed
	c.parts[i].h = h
	return c.index(i, from)
}

// Patch puts what the preimages have over b, the bytes at off of what is underneath. b lies within Size.
func (c *Chain) Patch(b []byte, off int64) error {
	end := off + int64(len(b))
	i := sort.Search(len(c.saved), func(i int) bool { return c.saved[i].end() > off })
	for ; i < len(c.saved) && c.saved[i].off < end; i++ {
		s := c.saved[i]
		if s.off < off {
			s = s.behind(off)
		}
		s.len = min(s.len, end-s.off)
		if err := c.read(s, b[s.off-off:s.end()-off]); err != nil {
			return failed("read", c.parts[s.part].ref.Name, err)
		}
	}
	return nil
}

// read fills p with a stretch.
func (c *Chain) read(s stretch, p []byte) error {
	if s.at == 0 {
		clear(p)
		return nil
	}
	f, err := c.file(s.part)
	if err != nil {
		return err
	}
	n, err := f.readAt(p, s.at)
	if err != nil || n < len(p) {
		return fmt.Errorf("%w: it ends at %d within what was saved (%v)", ErrCorrupt, s.at+int64(n), err)
	}
	return nil
}

// Apply makes the regular file dst, open for reading and writing, which holds what is underneath, the content that the chain is. It changes
// nothing but the ranges that Saved gives and the size. If it is interrupted, running it again gives the whole result. Damage must have been looked for before.
func (c *Chain) Apply(dst *os.File) error {
	defer runtime.KeepAlive(dst)
	f := fileOf(dst)
	if err := resize(f, c.size); err != nil {
		return failed("restore", c.last().ref.Name, err)
	}
	return withBuffer(largeSize, func(buf []byte) error {
		for _, s := range c.saved {
			if err := c.put(f, s, buf); err != nil {
				return failed("restore", c.parts[s.part].ref.Name, err)
			}
			crash.Point("blocks-applied")
		}
		return nil
	})
}

// put writes a stretch to dst.
func (c *Chain) put(dst file, s stretch, buf []byte) error {
	if s.at == 0 {
		end := s.end()
		if end == c.size { // only whole blocks can be freed
			end += (blockSize - end%blockSize) % blockSize
		}
		if err := punch(dst, s.off, end); !errors.Is(err, errNoPunch) {
			return err
		}
	}
	for s.len > 0 {
		p := buf[:min(int64(len(buf)), s.len)]
		if err := c.read(s, p); err != nil {
			return err
		}
		if err := write(dst, p, s.off); err != nil {
			return err
		}
		s = s.behind(s.off + int64(len(p)))
	}
	return nil
}

// Close releases descriptors.
func (c *Chain) Close() {
	for _, i := range c.open {
		c.close(i)
	}
	c.open = nil
}
