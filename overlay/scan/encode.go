package scan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unsafe"

	"github.com/cespare/xxhash/v2"
	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/strategy"
)

// A manifest in a file, its integers as varints:
//
//	magic with the version
//	length of the head
//	head: the numbers of all backups that it names, sorted, each as the difference to the one before
//	xxHash64 of the head, 8 bytes, big endian
//	stamp, names of tiers, entries
//	in version 2, of a manifest with ignore patterns: their lines, and the tracked paths
//	xxHash64 of all that comes before, 8 bytes, big endian
//
// So what a manifest names can be had without reading its entries.
const (
	magic        = "hyperfs manifest 1\n"
	magicIgnores = "hyperfs manifest 2\n" // as long
)

const sumLen = 8

var (
	errTruncated = errors.New("it ends too early")
	errSum       = errors.New("its checksum is wrong")
)

// encode gives the file.
func (m *manifest) encode() ([]byte, error) {
	head, err := m.encodeHead()
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(m.entries)*100+len(head)+256)
	if m.scope.whole() {
		b = append(b, magic...)
	} else {
		b = append(b, magicIgnores...)
	}
	b = binary.AppendUvarint(b, uint64(len(head)))
	b = append(b, head...)
	b = binary.BigEndian.AppendUint64(b, xxhash.Sum64(head))
	b = binary.AppendVarint(b, m.stamp)
	kinds := m.tiers()
	b = binary.AppendUvarint(b, uint64(len(kinds)))
	for _, k := range kinds {
		b = appendString(b, string(k))
	}
	b = binary.AppendUvarint(b, uint64(len(m.entries)))
	for i := range m.entries {
		b = m.entries[i].append(b, int32(i), kinds)
	}
	if !m.scope.whole() {
		b = appendStrings(b, m.scope.rules[0].Lines())
		b = appendStrings(b, m.scope.tracked)
	}
	return binary.BigEndian.AppendUint64(b, xxhash.Sum64(b)), nil
}

// tiers gives those that the manifest's backups are in.
func (m *manifest) tiers() []strategy.Kind {
	var kinds []strategy.Kind
	for i := range m.entries {
		if r := &m.entries[i].ref; r.Name != "" && !slices.Contains(kinds, r.Tier) {
			kinds = append(kinds, r.Tier)
		}
	}
	return kinds
}

func (m *manifest) encodeHead() ([]byte, error) {
	numbers, err := m.backups()
	if err != nil {
		return nil, err
	}
	head := binary.AppendUvarint(nil, uint64(len(numbers)))
	last := uint64(0)
	for _, n := range numbers {
		head = binary.AppendUvarint(head, n-last)
		last = n
	}
	return head, nil
}

// backups gives the numbers of all backups that the manifest names, sorted.
func (m *manifest) backups() ([]uint64, error) {
	numbers := make([]uint64, 0, len(m.entries))
	for i := range m.entries {
		e := &m.entries[i]
		if e.ref.Name == "" || e.first != int32(i) {
			continue
		}
		n, err := backupNumber(e.ref.Name)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), nil
}

// backupName is the name of a backup in its tier.
func backupName(n uint64) string { return strconv.FormatUint(n, 16) }

func backupNumber(name string) (uint64, error) { return strconv.ParseUint(name, 16, 64) }

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendStrings(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}

func (e *entry) append(b []byte, i int32, kinds []strategy.Kind) []byte {
	b = appendString(b, e.name)
	for _, v := range []uint64{
		uint64(i - e.parent), uint64(i - e.first), uint64(e.flags), uint64(e.mode), uint64(e.uid), uint64(e.gid), e.rdev,
		uint64(e.nlink), e.dev, e.ino,
	} {
		b = binary.AppendUvarint(b, v)
	}
	for _, v := range []int64{e.size, e.mtime, e.ctime, e.birth, e.blocks} {
		b = binary.AppendVarint(b, v)
	}
	b = appendString(b, e.target)
	b = binary.AppendUvarint(b, uint64(len(e.xattrs)))
	for _, x := range e.xattrs {
		b = appendString(b, x.Name)
		b = appendString(b, string(x.Value))
	}
	return appendRef(b, &e.ref, kinds)
}

// appendRef writes a tier's number, counted from 1, and what else a Ref has; 0 where there is none.
func appendRef(b []byte, r *strategy.Ref, kinds []strategy.Kind) []byte {
	if r.Name == "" {
		return append(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(slices.Index(kinds, r.Tier)+1))
	b = appendString(b, r.Name)
	b = binary.AppendVarint(b, r.Size)
	b = binary.AppendVarint(b, r.Mtime)
	if !r.HasSum {
		return append(b, 0)
	}
	return binary.BigEndian.AppendUint64(append(b, 1), r.Sum)
}

// reader takes fields from the front of a file; after a failure it gives zeros. Strings are parts of the file.
type reader struct {
	s       string
	err     error
	ignores bool // the file is of version 2
}

func (r *reader) take(n uint64) string {
	if n > uint64(len(r.s)) {
		r.fail(errTruncated)
		return ""
	}
	s := r.s[:n]
	r.s = r.s[n:]
	return s
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.s = ""
}

func (r *reader) uvarint() uint64 {
	var v uint64
	for i := 0; i < len(r.s) && i < binary.MaxVarintLen64; i++ {
		c := r.s[i]
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			r.s = r.s[i+1:]
			return v
		}
	}
	r.fail(errTruncated)
	return 0
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	v := int64(u >> 1)
	if u&1 != 0 {
		v = ^v
	}
	return v
}

func (r *reader) string() string { return r.take(r.uvarint()) }

func (r *reader) fixed() uint64 {
	s := r.take(sumLen)
	if len(s) != sumLen {
		return 0
	}
	return binary.BigEndian.Uint64([]byte(s))
}

// decodeHead reads the head alone: b may end after it.
func decodeHead(b []byte) ([]uint64, error) {
	r, err := newReader(b)
	if err != nil {
		return nil, err
	}
	return r.head()
}

// newReader takes b over.
func newReader(b []byte) (*reader, error) {
	r := &reader{s: unsafe.String(unsafe.SliceData(b), len(b))} // b is nobody else's
	switch got := r.take(uint64(min(len(magic), len(b)))); got {
	case magic:
	case magicIgnores:
		r.ignores = true
	default:
		return nil, fmt.Errorf("it begins with %.20q, which this hyperfs does not know", got)
	}
	return r, nil
}

func (r *reader) head() ([]uint64, error) {
	head := r.string()
	if sum := r.fixed(); r.err == nil && sum != xxhash.Sum64String(head) {
		r.fail(errSum)
	}
	h := reader{s: head, err: r.err}
	var numbers []uint64
	last := uint64(0)
	for n := h.uvarint(); n > 0 && h.err == nil; n-- {
		last += h.uvarint()
		numbers = append(numbers, last)
	}
	return numbers, h.err
}

// decodeManifest reads a whole file.
func decodeManifest(b []byte) (*manifest, error) {
	if len(b) < sumLen || xxhash.Sum64(b[:len(b)-sumLen]) != binary.BigEndian.Uint64(b[len(b)-sumLen:]) {
		return nil, errSum
	}
	r, err := newReader(b[:len(b)-sumLen])
	if err != nil {
		return nil, err
	}
	if _, err := r.head(); err != nil {
		return nil, err
	}
	m := &manifest{stamp: r.varint()}
	var kinds []strategy.Kind
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		kinds = append(kinds, strategy.Kind(r.string()))
	}
	n := r.uvarint()
	if n == 0 || n > uint64(len(r.s)) {
		return nil, errTruncated
	}
	m.entries = make([]entry, n)
	for i := range m.entries {
		r.entry(&m.entries[i], int32(i), kinds)
	}
	if r.ignores {
		r.scope(&m.scope)
	}
	if r.err == nil {
		m.closeDirs()
	}
	return m, r.err
}

func (r *reader) scope(s *scope) {
	rules, err := ignore.Compile(r.strings())
	if s.tracked = r.strings(); err == nil && rules == nil {
		err = errors.New("it has no patterns")
	}
	if err != nil {
		r.fail(err)
		return
	}
	s.rules = []*ignore.Rules{rules}
}

func (r *reader) strings() (list []string) {
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		list = append(list, r.string())
	}
	return list
}

func (r *reader) entry(e *entry, i int32, kinds []strategy.Kind) {
	e.name = r.string()
	e.parent, e.first = i-int32(r.uvarint()), i-int32(r.uvarint())
	if e.parent >= i || e.first > i || e.first < 0 || e.parent < 0 && i > 0 {
		r.fail(errors.New("an entry comes before its directory"))
	}
	e.flags, e.mode = flags(r.uvarint()), uint32(r.uvarint())
	e.uid, e.gid, e.rdev = uint32(r.uvarint()), uint32(r.uvarint()), r.uvarint()
	e.nlink, e.dev, e.ino = uint32(r.uvarint()), r.uvarint(), r.uvarint()
	e.size, e.mtime, e.ctime, e.birth, e.blocks = r.varint(), r.varint(), r.varint(), r.varint(), r.varint()
	e.target = r.string()
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		e.xattrs = append(e.xattrs, checkpoint.Xattr{Name: r.string(), Value: []byte(r.string())})
	}
	r.ref(&e.ref, kinds)
}

func (r *reader) ref(f *strategy.Ref, kinds []strategy.Kind) {
	k := r.uvarint()
	if k == 0 || r.err != nil {
		return
	}
	if k > uint64(len(kinds)) {
		r.fail(errors.New("a backup is in no tier"))
		return
	}
	f.Tier, f.Name, f.Size, f.Mtime = kinds[k-1], r.string(), r.varint(), r.varint()
	if r.uvarint() == 1 {
		f.Sum, f.HasSum = r.fixed(), true
	}
}
