package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Keys. All numbers in keys are big endian, so that iteration is in order. An ID takes 16 bytes.
//
//	s <epoch> <dir> <name>           slot record          → Occupant
//	a <epoch> <id>                   attribute record     → Attr
//	c <epoch> <id>                   content record       → Content
//	t <epoch> <id>                   xattr record         → []Xattr
//	n <epoch> <id> <dir> <name>      the old inode id was given this further name
//	g <epoch> <id>                   how many names an inode had before that number changed; only where it was or became
//	                                 more than one
//	u <epoch> <id>                   changed while nobody watched: its state before is not known → path
//	p <epoch> <id>                   the rollback of that epoch puts another inode in its place → that one's ID
//	x <id> <epoch> [<dir> <name>]    reverse index: the slot record of that epoch names id; without a slot: id is older
//	                                 than the epoch and sits in a slot that the epoch recorded (moved or linked there)
//	l <id>                           where a directory or a moved inode is now → Loc
//	r <id>                           a directory that was made anew → its new ID, the epoch in which that was
//	o <epoch> <owner>                the state at the beginning of the epoch is needed
//	k <checkpoint ID>                checkpoint (JSON)
//	m <name>                         counters, the intent of a rollback
//	q <turn ID>                      turn (JSON)
//	z <BLAKE3 sum>                   a small blob of the states of turns
//
// Of branches; a layer is named by its number:
//
//	y <layer>                        layer                → Layer
//	e <layer> <dir> <name>           slot record          → LayerSlot
//	i <layer> <id>                   inode record         → LayerInode
//	b <branch number>                branch (JSON)
//	h <checkpoint ID>                checkpoint of a branch (JSON)
const (
	keySlot       = 's'
	keyAttr       = 'a'
	keyContent    = 'c'
	keyXattrs     = 't'
	keyLinked     = 'n'
	keyNames      = 'g'
	keyOutside    = 'u'
	keyReplaced   = 'p'
	keyReverse    = 'x'
	keyLoc        = 'l'
	keyAlias      = 'r'
	keyPin        = 'o'
	keyCheckpoint = 'k'
	keyMeta       = 'm'
	keyTurn       = 'q'
	keyBlob       = 'z'

	keyLayer            = 'y'
	keyLayerSlot        = 'e'
	keyLayerInode       = 'i'
	keyBranch           = 'b'
	keyBranchCheckpoint = 'h'
)

// recordVersion is the first byte of every binary value.
const recordVersion = 1

const idLen = 16

var errShort = errors.New("record is too short")

func appendID(b []byte, id ID) []byte {
	b = binary.BigEndian.AppendUint64(b, id.Ino)
	return binary.BigEndian.AppendUint64(b, uint64(id.Birth))
}

func decodeID(b []byte) ID {
	return ID{binary.BigEndian.Uint64(b), int64(binary.BigEndian.Uint64(b[8:]))}
}

func appendSlot(b []byte, s Slot) []byte { return append(appendID(b, s.Dir), s.Name...) }

func decodeSlot(b []byte) Slot { return Slot{decodeID(b), string(b[idLen:])} }

func epochKey(kind byte, e Epoch) []byte {
	return appendEpochKey(make([]byte, 0, 1+8+idLen+32), kind, e)
}

func appendEpochKey(b []byte, kind byte, e Epoch) []byte {
	return binary.BigEndian.AppendUint64(append(b, kind), uint64(e))
}

func appendInodeKey(b []byte, kind byte, e Epoch, id ID) []byte {
	return appendID(appendEpochKey(b, kind, e), id)
}

func slotKey(e Epoch, s Slot) []byte            { return appendSlot(epochKey(keySlot, e), s) }
func inodeKey(kind byte, e Epoch, id ID) []byte { return appendID(epochKey(kind, e), id) }
func idKey(kind byte, id ID) []byte             { return appendID([]byte{kind}, id) }

// reverseKey is the prefix of all reverse entries of id in an epoch.
func reverseKey(id ID, e Epoch) []byte {
	return binary.BigEndian.AppendUint64(idKey(keyReverse, id), uint64(e))
}

func keyEpoch(key []byte) Epoch { return Epoch(binary.BigEndian.Uint64(key[1:])) }

// decoder reads the fields of a value in order; after a failure all further reads give zeros.
type decoder struct {
	b   []byte
	err error
}

func newDecoder(b []byte) *decoder {
	d := &decoder{b: b}
	if v := d.byte(); d.err == nil && v != recordVersion {
		d.err = fmt.Errorf("record has version %d, this hyperfs knows %d", v, recordVersion)
	}
	return d
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || len(d.b) < n {
		if d.err == nil {
			d.err = errShort
		}
		return make([]byte, n&0xff)
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte { return d.take(1)[0] }
func (d *decoder) id() ID     { return decodeID(d.take(idLen)) }

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if d.err != nil || n <= 0 {
		if d.err == nil {
			d.err = errShort
		}
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if d.err != nil || n <= 0 {
		if d.err == nil {
			d.err = errShort
		}
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.err = errShort
		return nil
	}
	return append([]byte(nil), d.take(int(n))...)
}

func (d *decoder) string() string { return string(d.bytes()) }

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func (o Occupant) encode() []byte {
	b := append(make([]byte, 0, 48), recordVersion)
	if o.ID.IsZero() {
		return b
	}
	b = appendID(b, o.ID)
	b = binary.AppendUvarint(b, uint64(o.Mode))
	b = binary.AppendVarint(b, o.Size)
	return binary.AppendVarint(b, o.Mtime)
}

func decodeOccupant(v []byte) (Occupant, error) {
	d := newDecoder(v)
	if d.err != nil || len(d.b) == 0 {
		return Occupant{}, d.err
	}
	o := Occupant{ID: d.id(), Mode: uint32(d.uvarint()), Size: d.varint(), Mtime: d.varint()}
	return o, d.err
}

func (a Attr) encode() []byte { return a.append(make([]byte, 0, 80)) }

func (a Attr) append(b []byte) []byte {
	b = append(b, recordVersion)
	b = appendID(b, a.At.Dir)
	b = appendString(b, a.At.Name)
	for _, v := range [...]uint64{uint64(a.Mode), uint64(a.UID), uint64(a.GID), a.Rdev, uint64(a.Nlink)} {
		b = binary.AppendUvarint(b, v)
	}
	b = binary.AppendVarint(b, a.Size)
	b = binary.AppendVarint(b, a.Mtime)
	return binary.AppendVarint(b, a.Ctime)
}

func decodeAttr(v []byte) (Attr, error) {
	d := newDecoder(v)
	var a Attr
	a.At.Dir = d.id()
	a.At.Name = d.string()
	a.Mode, a.UID, a.GID = uint32(d.uvarint()), uint32(d.uvarint()), uint32(d.uvarint())
	a.Rdev, a.Nlink = d.uvarint(), uint32(d.uvarint())
	a.Size, a.Mtime, a.Ctime = d.varint(), d.varint(), d.varint()
	return a, d.err
}

func encodeXattrs(xs []Xattr) []byte {
	b := binary.AppendUvarint([]byte{recordVersion}, uint64(len(xs)))
	for _, x := range xs {
		b = appendString(b, x.Name)
		b = appendString(b, string(x.Value))
	}
	return b
}

func decodeXattrs(v []byte) ([]Xattr, error) {
	d := newDecoder(v)
	n := d.uvarint()
	xs := []Xattr{}
	for i := uint64(0); i < n && d.err == nil; i++ {
		xs = append(xs, Xattr{d.string(), d.bytes()})
	}
	return xs, d.err
}

func encodeNames(n uint32) []byte { return binary.AppendUvarint([]byte{recordVersion}, uint64(n)) }

func decodeNames(v []byte) (uint32, error) {
	d := newDecoder(v)
	n := uint32(d.uvarint())
	return n, d.err
}

func encodeLoc(l Loc) []byte {
	b := []byte{recordVersion}
	for _, s := range l.Slots {
		b = appendID(b, s.Dir)
		b = appendString(b, s.Name)
	}
	return b
}

func decodeLoc(v []byte) (Loc, error) {
	d := newDecoder(v)
	var l Loc
	for d.err == nil && len(d.b) > 0 {
		l.Slots = append(l.Slots, Slot{d.id(), d.string()})
	}
	return l, d.err
}
