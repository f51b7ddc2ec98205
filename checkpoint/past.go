package checkpoint

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Past answers from memory what the undo log says of the state at the beginning of an epoch: of each slot and inode its earliest record since then.
// What it says nothing of has not changed since. A record is in it before Update or Flush returns, and so before the change that it is made
// for. Methods may be called concurrently. IDs are given and taken with aliases resolved.
type Past struct {
	p   *pasts
	seg *segment
}

// pasts are the epochs whose state somebody reads. What each of them needs lies in segments: that of an epoch has the earliest records from it up
// to the next epoch that is open, and the newest one's all since. So a new record goes to one segment, however many are open.
type pasts struct {
	s       *Store
	any     atomic.Bool // whether there is a segment; so that nobody else pays
	opening sync.Mutex  // one segment is loaded at a time; before mu

	mu    sync.RWMutex // guards what follows, and the segments
	segs  []*segment   // in the order of epochs
	stale error        // why what is in memory can't be trusted; everything is read again then
}

// segment has what the records from an epoch on say, as far as no later segment does.
type segment struct {
	epoch Epoch
	users int
	records
}

type records struct {
	slots    map[ID]map[string]Occupant
	where    map[ID][]Slot // the slots that an inode was in
	attrs    map[ID]Attr
	contents map[ID][]InEpoch // in the order of epochs, up to the first that is whole
	xattrs   map[ID]xattrsIn
	names    map[ID]uint32
	outside  map[ID]Epoch
}

// xattrsIn is an xattr record.
type xattrsIn struct {
	epoch Epoch
	list  []Xattr
}

func newRecords() records {
	return records{
		slots: map[ID]map[string]Occupant{}, where: map[ID][]Slot{}, attrs: map[ID]Attr{}, contents: map[ID][]InEpoch{},
		xattrs: map[ID]xattrsIn{}, names: map[ID]uint32{}, outside: map[ID]Epoch{},
	}
}

// OpenPast reads what the log has since an epoch, and keeps it up to date until Close. The caller sees to it that the records of that epoch and later
// ones are neither dropped nor joined with earlier ones while it is open, and that nothing is dropped or joined during the call.
func (s *Store) OpenPast(e Epoch) (*Past, error) {
	p := &s.pasts
	p.opening.Lock()
	defer p.opening.Unlock()
	seg, next := p.enter(e)
	if next == nil {
		return &Past{p, seg}, nil
	}
	// Commits go on meanwhile, and what they say is in the segment already: what is read comes before it.
	read, err := s.readRecords(e, *next)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.leave(seg)
		return nil, err
	}
	read.takeAll(seg.records)
	seg.records = read
	return &Past{p, seg}, nil
}

// enter gives the segment of an epoch. next says that it is a new one that has to be read, and up to which epoch; 0 is without end.
func (p *pasts) enter(e Epoch) (seg *segment, next *Epoch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, found := slices.BinarySearchFunc(p.segs, e, func(s *segment, e Epoch) int { return cmp.Compare(s.epoch, e) })
	if found {
		p.segs[i].users++
		return p.segs[i], nil
	}
	seg, next = &segment{epoch: e, users: 1, records: newRecords()}, new(Epoch)
	if i < len(p.segs) {
		*next = p.segs[i].epoch
	}
	p.segs = slices.Insert(p.segs, i, seg)
	p.any.Store(true)
	return seg, next
}

// leave gives a segment back. What earlier epochs need of it goes to the one before. The caller holds mu.
func (p *pasts) leave(seg *segment) {
	if seg.users--; seg.users > 0 {
		return
	}
	i := slices.Index(p.segs, seg)
	if i > 0 {
		p.segs[i-1].takeAll(seg.records)
	}
	p.segs = slices.Delete(p.segs, i, i+1)
	if len(p.segs) == 0 {
		p.any.Store(false)
		p.stale = nil
	}
}

// Close ends it. It is called once.
func (a *Past) Close() {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	a.p.leave(a.seg)
}

// Epoch is the one at whose beginning the state was.
func (a *Past) Epoch() Epoch { return a.seg.epoch }

// readRecords reads the records of the epochs from ≤ e < to; to 0 means without end.
func (s *Store) readRecords(from, to Epoch) (records, error) {
	r := newRecords()
	err := s.View(func(tx *Tx) error {
		for _, kind := range pastKinds {
			err := tx.eachEpoch(kind, from, to, func(key, v []byte) error { return r.add(s, key, v) })
			if err != nil {
				return err
			}
		}
		return nil
	})
	return r, err
}

// pastKinds are the records that tell what the past was.
var pastKinds = []byte{keySlot, keyAttr, keyContent, keyXattrs, keyNames, keyOutside}

// add takes in a record that is not earlier than those that r has of the same slot or inode. It keeps neither slice.
func (r *records) add(s *Store, key, v []byte) error {
	switch key[0] {
	case keySlot:
		slot := decodeSlot(key[9:])
		slot.Dir = s.Resolve(slot.Dir)
		o, err := decodeOccupant(v)
		o.ID = s.Resolve(o.ID)
		if err == nil {
			r.addSlot(slot, o)
		}
		return err
	case keyAttr:
		a, err := decodeAttr(v)
		a.At.Dir = s.Resolve(a.At.Dir)
		return first(r.attrs, s.Resolve(decodeID(key[9:])), a, err)
	case keyContent:
		c, err := decodeContent(v)
		if err == nil {
			r.addContent(InEpoch{keyEpoch(key), decodeID(key[9:]), c})
		}
		return err
	case keyXattrs:
		xs, err := decodeXattrs(v)
		return first(r.xattrs, s.Resolve(decodeID(key[9:])), xattrsIn{keyEpoch(key), xs}, err)
	case keyNames:
		n, err := decodeNames(v)
		return first(r.names, s.Resolve(decodeID(key[9:])), n, err)
	case keyOutside:
		return first(r.outside, s.Resolve(decodeID(key[9:])), keyEpoch(key), nil)
	}
	return nil
}

func (r *records) addSlot(slot Slot, o Occupant) {
	names := r.slots[slot.Dir]
	if names == nil {
		names = map[string]Occupant{}
		r.slots[slot.Dir] = names
	}
	if _, ok := names[slot.Name]; ok {
		return
	}
	names[slot.Name] = o
	if !o.ID.IsZero() {
		r.where[o.ID] = append(r.where[o.ID], slot)
	}
}

func (r *records) addContent(c InEpoch) {
	list := r.contents[c.ID]
	if k := len(list); k == 0 || !list[k-1].Whole() && list[k-1].Epoch < c.Epoch {
		r.contents[c.ID] = append(list, c)
	}
}

// changeContent replaces the content record of an epoch, or with an empty content forgets it, if r has it. It reports whether it had.
func (r *records) changeContent(c InEpoch) bool {
	list := r.contents[c.ID]
	i := slices.IndexFunc(list, func(o InEpoch) bool { return o.Epoch == c.Epoch })
	if i < 0 {
		return false
	}
	list = slices.Clone(list) // somebody may be reading the old one
	if len(c.Refs()) == 0 {
		list = slices.Delete(list, i, i+1)
	} else {
		list[i] = c
	}
	if r.contents[c.ID] = list; len(list) == 0 {
		delete(r.contents, c.ID)
	}
	return true
}

// takeAll takes in records that are not earlier than those that r has.
func (r *records) takeAll(later records) {
	for dir, names := range later.slots {
		for name, o := range names {
			r.addSlot(Slot{dir, name}, o)
		}
	}
	takeMissing(r.attrs, later.attrs)
	takeMissing(r.xattrs, later.xattrs)
	takeMissing(r.names, later.names)
	takeMissing(r.outside, later.outside)
	for _, list := range later.contents {
		for _, c := range list {
			if !r.changeContent(c) {
				r.addContent(c)
			}
		}
	}
}

func takeMissing[V any](m, from map[ID]V) {
	for id, v := range from {
		if _, ok := m[id]; !ok {
			m[id] = v
		}
	}
}

// note takes in what was committed.
func (p *pasts) note(writes []write) {
	if !p.any.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.segs) == 0 {
		return
	}
	for _, w := range writes {
		if err := p.noteOne(w); err != nil {
			p.stale = err
		}
	}
}

// noteOne takes in one write. Of all records but those of contents only the first ever counts: a rollback that is resumed writes some again.
func (p *pasts) noteOne(w write) error {
	newest := p.segs[len(p.segs)-1]
	switch {
	case !slices.Contains(pastKinds, w.key[0]):
		return nil
	case w.key[0] == keyContent:
		return p.noteContent(newest, w)
	case w.deleted || keyEpoch(w.key) < newest.epoch:
		return nil
	}
	return newest.add(p.s, w.key, w.value)
}

// noteContent takes in a write of a content record, which may be one of an earlier epoch: where epochs are joined, and when block preimages are.
func (p *pasts) noteContent(newest *segment, w write) error {
	c := InEpoch{Epoch: keyEpoch(w.key), ID: decodeID(w.key[9:])}
	if !w.deleted {
		var err error
		if c.Content, err = decodeContent(w.value); err != nil {
			return err
		}
	}
	known := false
	for _, seg := range p.segs {
		known = seg.changeContent(c) || known
	}
	if !known && !w.deleted && c.Epoch >= newest.epoch {
		newest.addContent(c)
	}
	return nil
}

// distrust has everything read again before it is used: what was committed is not known for sure, or names other inodes now.
func (p *pasts) distrust(why error) {
	if !p.any.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stale = why
}

// reading gives the segments from that of a on, for as long as done is not called.
func (a *Past) reading() (segs []*segment, done func(), err error) {
	p := a.p
	p.mu.RLock()
	for p.stale != nil {
		p.mu.RUnlock()
		if err := p.reload(); err != nil {
			return nil, nil, err
		}
		p.mu.RLock()
	}
	return p.segs[slices.Index(p.segs, a.seg):], p.mu.RUnlock, nil
}

// reload reads everything again. No commit is noted meanwhile: each is, after that, if it was not read.
func (p *pasts) reload() error {
	p.opening.Lock()
	defer p.opening.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, seg := range p.segs {
		var to Epoch
		if i+1 < len(p.segs) {
			to = p.segs[i+1].epoch
		}
		r, err := p.s.readRecords(seg.epoch, to)
		if err != nil {
			return err
		}
		seg.records = r
	}
	p.stale = nil
	return nil
}

// earliest gives the first value that a segment has.
func earliest[V any](a *Past, get func(*segment) (V, bool)) (v V, ok bool, err error) {
	segs, done, err := a.reading()
	if err != nil {
		return v, false, err
	}
	defer done()
	for _, seg := range segs {
		if v, ok = get(seg); ok {
			return v, true, nil
		}
	}
	return v, false, nil
}

// Until gives the slots and the inodes of which there may be a record between this epoch and that of a later one: all else is the same in both states.
func (a *Past) Until(b *Past) (slots map[Slot]struct{}, inodes map[ID]struct{}, err error) {
	segs, done, err := a.reading()
	if err != nil {
		return nil, nil, err
	}
	defer done()
	slots, inodes = map[Slot]struct{}{}, map[ID]struct{}{}
	for _, seg := range segs {
		if seg == b.seg {
			return slots, inodes, nil
		}
		for dir, names := range seg.slots {
			for name := range names {
				slots[Slot{dir, name}] = struct{}{}
			}
		}
		addKeys(inodes, seg.attrs)
		addKeys(inodes, seg.contents)
		addKeys(inodes, seg.xattrs)
		addKeys(inodes, seg.outside)
	}
	return nil, nil, fmt.Errorf("epoch %d is not later than %d", b.seg.epoch, a.seg.epoch)
}

func addKeys[V any](to map[ID]struct{}, from map[ID]V) {
	for id := range from {
		to[id] = struct{}{}
	}
}

// Slot gives what a slot held, if it has changed since.
func (a *Past) Slot(s Slot) (Occupant, bool, error) {
	return earliest(a, func(seg *segment) (Occupant, bool) { o, ok := seg.slots[s.Dir][s.Name]; return o, ok })
}

// Names gives what the slots of a directory held that have changed since. The zero Occupant says that it was nothing.
func (a *Past) Names(dir ID) (map[string]Occupant, error) {
	segs, done, err := a.reading()
	if err != nil {
		return nil, err
	}
	defer done()
	all := map[string]Occupant{}
	for _, seg := range segs {
		for name, o := range seg.slots[dir] {
			if _, ok := all[name]; !ok {
				all[name] = o
			}
		}
	}
	return all, nil
}

// Attr gives the attributes of an inode, if they have changed since.
func (a *Past) Attr(id ID) (Attr, bool, error) {
	return earliest(a, func(seg *segment) (Attr, bool) { v, ok := seg.attrs[id]; return v, ok })
}

// Xattrs gives the extended attributes of an inode, if they have changed since.
func (a *Past) Xattrs(id ID) ([]Xattr, bool, error) {
	v, ok, err := earliest(a, func(seg *segment) (xattrsIn, bool) { v, ok := seg.xattrs[id]; return v, ok })
	return v.list, ok, err
}

// XattrsIn gives the epoch of the record that Xattrs answers from.
func (a *Past) XattrsIn(id ID) (Epoch, bool, error) {
	v, ok, err := earliest(a, func(seg *segment) (xattrsIn, bool) { v, ok := seg.xattrs[id]; return v, ok })
	return v.epoch, ok, err
}

// NameCount gives how many names an inode had, if that was or is more than one, and has changed since.
func (a *Past) NameCount(id ID) (uint32, bool, error) {
	return earliest(a, func(seg *segment) (uint32, bool) { v, ok := seg.names[id]; return v, ok })
}

// Outside reports whether an inode was changed since then while nobody watched, and in which epoch that was found.
func (a *Past) Outside(id ID) (Epoch, bool, error) {
	return earliest(a, func(seg *segment) (Epoch, bool) { v, ok := seg.outside[id]; return v, ok })
}

// Content gives what it takes to have back the content of an inode, if that has changed since; without a whole preimage it lies over what
// the inode holds now. whole is the epoch of that preimage; 0 where there is none, or where it may be of a later epoch than its record: see joinContents.
func (a *Past) Content(id ID) (c Content, whole Epoch, err error) {
	segs, done, err := a.reading()
	if err != nil {
		return c, 0, err
	}
	defer done()
	in := Epoch(0)
	for _, seg := range segs {
		for _, next := range seg.contents[id] {
			if c.Whole() {
				return c, whole, nil
			}
			if next.Epoch <= in { // segments can share records
				continue
			}
			if in = next.Epoch; next.Whole() && len(next.Parts) == 0 {
				whole = in
			}
			c.Ref, c.Parts = next.Ref, append(slices.Clip(c.Parts), next.Parts...)
		}
	}
	return c, whole, nil
}

// Where gives slots that an inode was in, then or later. It may be in none of them any more.
func (a *Past) Where(id ID) ([]Slot, error) {
	segs, done, err := a.reading()
	if err != nil {
		return nil, err
	}
	defer done()
	var slots []Slot
	for _, seg := range segs {
		slots = append(slots, seg.where[id]...)
		if at, ok := seg.attrs[id]; ok && !at.At.Dir.IsZero() {
			slots = append(slots, at.At)
		}
	}
	return slots, nil
}
