package strategy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cespare/xxhash/v2"
)

// Blocks keeps block preimages: of a large file that is changed in place, only what is overwritten. Each is a file in the
// directory of the durable tiers, also where the tier in use keeps its preimages in RAM: an append to it goes to the page
// cache, which is as fast, survives the daemon, and can be written back when memory gets short. Its methods may be called concurrently.
//
// The file is a header and then entries, integers as 64-bit little endian:
//
//	header: magic, format, identity, the length that the original had, the committed length, checksum
//	entry:  offset in the original, length, kind, checksum; for data, the bytes
//
// The identity is the xxHash64 of the preimage's name, so that one file can't pass for another. Checksums are xxHash64 too: the header's is
// of what is before it; an entry's is of the identity, its own place in the file, what is before it, and its bytes.
//
// An entry counts once the committed length covers it. What lies behind was never promised to anybody, and is ignored: a
// process that died while it was saving left it. So nothing within can be a torn write, and what fails its checksum is damage.
type Blocks struct{ p preimages }

// OpenBlocks gives the block preimages in dir, the directory of the durable tiers' preimages, which stays the caller's.
func OpenBlocks(dir *os.File, o Options) (*Blocks, error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open block preimages: %w", err)
	}
	return &Blocks{site{d, o}.preimages()}, nil
}

// Close releases descriptors. It removes nothing.
func (b *Blocks) Close() error { return b.p.Close() }

const (
	blocksMagic  = "hyperblk"
	blocksFormat = 1
	headerLen    = 48
	entryLen     = 32
)

// header is what a block preimage begins with.
type header struct {
	id        uint64
	size      int64 // bytes: of the original
	committed int64 // bytes: of the preimage
}

func identityOf(name string) uint64 { return xxhash.Sum64String(name) }

func (h header) encode() []byte {
	b := append(make([]byte, 0, headerLen), blocksMagic...)
	for _, v := range []uint64{blocksFormat, h.id, uint64(h.size), uint64(h.committed)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// readHeader reads and proves the header of the preimage that ref names.
func readHeader(f file, ref Ref) (header, error) {
	b := make([]byte, headerLen)
	n, err := f.readAt(b, 0)
	if err != nil {
		return header{}, fmt.Errorf("%w: read: %w", ErrCorrupt, err)
	}
	field := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	if n < headerLen || string(b[:8]) != blocksMagic || field(5) != xxhash.Sum64(b[:headerLen-8]) {
		return header{}, fmt.Errorf("%w: it does not begin like a block preimage", ErrCorrupt)
	}
	if field(1) != blocksFormat {
		return header{}, fmt.Errorf("%w: it has format %d, this hyperfs knows %d", ErrCorrupt, field(1), blocksFormat)
	}
	h := header{field(2), int64(field(3)), int64(field(4))}
	if h.id != identityOf(ref.Name) || h.size != ref.Size || h.committed < headerLen {
		return header{}, fmt.Errorf("%w: it is another preimage's", ErrCorrupt)
	}
	return h, nil
}

// What an entry says of its range.
const (
	kindData = 1
	kindHole = 2
)

// entry is a range of the original.
type entry struct {
	off, len int64
	kind     uint64
	sum      uint64
	at       int64 // where it begins in the preimage
}

// dataAt is where the bytes are in the preimage.
func (e entry) dataAt() int64 { return e.at + entryLen }

// next is where the entry behind it begins.
func (e entry) next() int64 {
	if e.kind == kindData {
		return e.dataAt() + e.len
	}
	return e.dataAt()
}

// encode fills in b, which has entryLen bytes, all but the checksum.
func (e entry) encode(b []byte) {
	binary.LittleEndian.PutUint64(b, uint64(e.off))
	binary.LittleEndian.PutUint64(b[8:], uint64(e.len))
	binary.LittleEndian.PutUint64(b[16:], e.kind)
}

// newSum begins the checksum of an entry, whose first bytes are head.
func (e entry) newSum(id uint64, head []byte) *xxhash.Digest {
	var where [16]byte
	binary.LittleEndian.PutUint64(where[:], id)
	binary.LittleEndian.PutUint64(where[8:], uint64(e.at))
	d := xxhash.New()
	_, _ = d.Write(where[:])
	_, _ = d.Write(head[:entryLen-8])
	return d
}

// readEntry reads the entry at a place, and proves that it lies within what h says; head is what it begins with.
func readEntry(f file, h header, at int64, head []byte) (entry, error) {
	if n, err := f.readAt(head, at); err != nil || n < entryLen {
		return entry{}, fmt.Errorf("%w: it ends at %d within what was saved (%v)", ErrCorrupt, at+int64(n), err)
	}
	e := entry{
		off: int64(binary.LittleEndian.Uint64(head)), len: int64(binary.LittleEndian.Uint64(head[8:])),
		kind: binary.LittleEndian.Uint64(head[16:]), sum: binary.LittleEndian.Uint64(head[24:]), at: at,
	}
	if e.off < 0 || e.len <= 0 || e.off > h.size || e.len > h.size-e.off || e.kind != kindData && e.kind != kindHole || e.next() > h.committed {
		return entry{}, fmt.Errorf("%w: the entry at %d makes no sense", ErrCorrupt, at)
	}
	return e, nil
}

// open opens a block preimage for reading.
func (b *Blocks) open(ref Ref) (file, header, error) {
	if err := b.check(ref); err != nil {
		return file{}, header{}, err
	}
	f, err := b.p.dir.open(ref.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return file{}, header{}, ErrMissing
	}
	if err != nil {
		return file{}, header{}, err
	}
	h, err := readHeader(f, ref)
	if err != nil {
		_ = f.close()
	}
	return f, h, err
}

func (b *Blocks) check(ref Ref) error {
	if !ref.Blocks {
		return fmt.Errorf("a whole preimage: %w", fs.ErrInvalid)
	}
	return b.p.checkRef(ref)
}

// eachEntry calls fn for every entry from a place up to the committed length.
func eachEntry(f file, h header, from int64, fn func(e entry, head []byte) error) error {
	head := make([]byte, entryLen)
	for at := from; at < h.committed; {
		e, err := readEntry(f, h, at, head)
		if err != nil {
			return err
		}
		if err := fn(e, head); err != nil {
			return err
		}
		at = e.next()
	}
	return nil
}

// Verify proves that the preimage is there, and that every entry is what was saved.
func (b *Blocks) Verify(ref Ref) error {
	f, h, err := b.open(ref)
	if err != nil {
		return failed("verify", ref.Name, err)
	}
	defer func() { _ = f.close() }()
	err = withBuffer(h.committed, func(buf []byte) error {
		return eachEntry(f, h, headerLen, func(e entry, head []byte) error { return verifyEntry(f, h, e, head, buf) })
	})
	return failed("verify", ref.Name, err)
}

func verifyEntry(f file, h header, e entry, head, buf []byte) error {
	d := e.newSum(h.id, head)
	for at := e.dataAt(); at < e.next(); {
		p := buf[:min(int64(len(buf)), e.next()-at)]
		n, err := f.readAt(p, at)
		if err != nil || n < len(p) {
			return fmt.Errorf("%w: it ends at %d within what was saved (%v)", ErrCorrupt, at+int64(n), err)
		}
		_, _ = d.Write(p)
		at += int64(n)
	}
	if d.Sum64() != e.sum {
		return fmt.Errorf("%w: what was saved of %d bytes at %d has another checksum", ErrCorrupt, e.len, e.off)
	}
	return nil
}

// Bytes gives how much a block preimage takes up, in bytes; 0 if it is gone.
func (b *Blocks) Bytes(ref Ref) int64 {
	f, h, err := b.open(ref)
	if err != nil {
		return 0
	}
	_ = f.close()
	return h.committed
}
