package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// BornInBranch is ID.Birth of what a branch has made. What comes from main keeps its identity.
const BornInBranch = -1

// Layer is a set of changes to the layer below it, or to what main was at the beginning of an epoch. Layers form a tree. Numbers
// are given out by whoever makes layers, and are never used twice.
type Layer struct {
	Num    uint64
	Parent uint64 // 0 for a layer over main
	Epoch  Epoch  // of main, below them all; it is pinned as long as a layer over main is there
	Into   uint64 // the layer that has all its records now; it is about to be removed
}

// LayerSlot is the value of a layer's slot record: what the slot holds from that layer on. The zero value is a whiteout.
type LayerSlot struct {
	ID   ID
	Type uint32 // the S_IFMT bits of the mode
}

// LayerInode is the value of a layer's inode record: where the inode is in the pool from that layer on.
type LayerInode struct {
	Pool     uint64 // its number there
	MetaOnly bool   // of a regular file: the content is that of the layer below
	Nlink    uint32 // names; of a directory it means nothing
	Owner    LayerOwner
}

// LayerOwner is whose an inode is, where an ordinary user's daemon can't give its inode in the pool away. Otherwise it is the zero value.
type LayerOwner struct {
	Set      bool
	UID, GID uint32
}

// BranchStatus says what became of a branch.
type BranchStatus string

// The statuses of a branch. Only an active one has a name of its own, and layers.
const (
	BranchActive  BranchStatus = "active"
	BranchMerged  BranchStatus = "merged"
	BranchDropped BranchStatus = "dropped"
)

// Branch is a writable view that was forked from a checkpoint. Its JSON form is what the socket shows.
type Branch struct {
	ID        string       `json:"id"`
	Num       uint64       `json:"num"` // never used twice
	Name      string       `json:"name"`
	Parent    string       `json:"parent"`               // name of the branch that it was forked from, or main
	ParentNum uint64       `json:"parent_num,omitempty"` // number of that branch; 0 is main
	ForkPoint string       `json:"fork_point"`           // the checkpoint that it was forked from
	Epoch     Epoch        `json:"epoch"`                // of main, which is what lies below all its layers
	Fork      uint64       `json:"fork_layer,omitempty"` // the layer that it was forked from; 0 where that is main
	Layer     uint64       `json:"layer"`                // the one that its changes go to
	Head      string       `json:"head,omitempty"`       // the checkpoint of its own that its state comes from
	Subagent  string       `json:"subagent,omitempty"`
	Agent     string       `json:"agent,omitempty"`
	Message   string       `json:"message,omitempty"`
	CreatedAt time.Time    `json:"created_at"`
	UpdatedAt time.Time    `json:"updated_at"`
	Status    BranchStatus `json:"status"`
	Children  []string     `json:"children"` // names of active branches that were forked from it; found out when it is asked for
}

// BranchCheckpoint is a checkpoint of a branch.
type BranchCheckpoint struct {
	Checkpoint
	BranchNum uint64 `json:"branch_num"`
	Layer     uint64 `json:"layer"` // the state of this one is the checkpoint's
}

func numKey(kind byte, num uint64) []byte { return binary.BigEndian.AppendUint64([]byte{kind}, num) }

func (l Layer) encode() []byte {
	b := binary.AppendUvarint([]byte{recordVersion}, l.Parent)
	b = binary.AppendUvarint(b, uint64(l.Epoch))
	return binary.AppendUvarint(b, l.Into)
}

func decodeLayer(num uint64, v []byte) (Layer, error) {
	d := newDecoder(v)
	l := Layer{Num: num, Parent: d.uvarint(), Epoch: Epoch(d.uvarint()), Into: d.uvarint()}
	return l, d.err
}

func (s LayerSlot) encode() []byte {
	b := append(make([]byte, 0, 24), recordVersion)
	if s.ID.IsZero() {
		return b
	}
	return binary.AppendUvarint(appendID(b, s.ID), uint64(s.Type))
}

func decodeLayerSlot(v []byte) (LayerSlot, error) {
	d := newDecoder(v)
	if d.err != nil || len(d.b) == 0 {
		return LayerSlot{}, d.err
	}
	s := LayerSlot{ID: d.id(), Type: uint32(d.uvarint())}
	return s, d.err
}

func (i LayerInode) encode() []byte {
	b := binary.AppendUvarint(append(make([]byte, 0, 16), recordVersion), i.Pool)
	meta := byte(0)
	if i.MetaOnly {
		meta = 1
	}
	b = binary.AppendUvarint(append(b, meta), uint64(i.Nlink))
	if !i.Owner.Set {
		return b
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(i.Owner.UID)), uint64(i.Owner.GID))
}

func decodeLayerInode(v []byte) (LayerInode, error) {
	d := newDecoder(v)
	i := LayerInode{Pool: d.uvarint(), MetaOnly: d.byte() != 0, Nlink: uint32(d.uvarint())}
	if d.err == nil && len(d.b) > 0 {
		i.Owner = LayerOwner{Set: true, UID: uint32(d.uvarint()), GID: uint32(d.uvarint())}
	}
	return i, d.err
}

// PutLayer writes the record of a layer.
func (tx *Tx) PutLayer(l Layer) error { return tx.Set(numKey(keyLayer, l.Num), l.encode()) }

// Layers gives all layers.
func (tx *Tx) Layers() ([]Layer, error) {
	var all []Layer
	err := tx.each([]byte{keyLayer}, nil, func(key, v []byte) error {
		l, err := decodeLayer(binary.BigEndian.Uint64(key[1:]), v)
		all = append(all, l)
		return corrupt("layer", err)
	})
	return all, err
}

// PinnedEpochs gives the epochs that layers lie over, in order: a state of main at one of these must stay to be had.
func (s *Store) PinnedEpochs() ([]Epoch, error) {
	var es []Epoch
	err := s.View(func(tx *Tx) error {
		layers, err := tx.Layers()
		for _, l := range layers {
			if l.Parent == 0 {
				es = append(es, l.Epoch)
			}
		}
		return err
	})
	slices.Sort(es)
	return slices.Compact(es), err
}

func corrupt(what string, err error) error {
	if err == nil {
		return nil
	}
	return errs.New(errs.Integrity, "read store", "", "a %s record is corrupt: %w", what, err)
}

// PutLayerSlot writes a slot record of a layer.
func (tx *Tx) PutLayerSlot(layer uint64, s Slot, held LayerSlot) error {
	return tx.Set(appendSlot(numKey(keyLayerSlot, layer), s), held.encode())
}

// DeleteLayerSlot removes it.
func (tx *Tx) DeleteLayerSlot(layer uint64, s Slot) error {
	return tx.delete(appendSlot(numKey(keyLayerSlot, layer), s))
}

// PutLayerInode writes an inode record of a layer.
func (tx *Tx) PutLayerInode(layer uint64, id ID, i LayerInode) error {
	return tx.Set(appendID(numKey(keyLayerInode, layer), id), i.encode())
}

// DeleteLayerInode removes it.
func (tx *Tx) DeleteLayerInode(layer uint64, id ID) error {
	return tx.delete(appendID(numKey(keyLayerInode, layer), id))
}

// EachLayerSlot calls fn for every slot record of a layer.
func (tx *Tx) EachLayerSlot(layer uint64, fn func(Slot, LayerSlot) error) error {
	return tx.each(numKey(keyLayerSlot, layer), nil, func(key, v []byte) error {
		held, err := decodeLayerSlot(v)
		if err != nil || len(key) < 9+idLen {
			return corrupt("slot", errShort)
		}
		return fn(decodeSlot(key[9:]), held)
	})
}

// EachLayerInode calls fn for every inode record of a layer.
func (tx *Tx) EachLayerInode(layer uint64, fn func(ID, LayerInode) error) error {
	return tx.eachLayerInode(numKey(keyLayerInode, layer), func(_ uint64, id ID, i LayerInode) error { return fn(id, i) })
}

// EachInodeOfLayers calls fn for every inode record of every layer.
func (tx *Tx) EachInodeOfLayers(fn func(layer uint64, id ID, i LayerInode) error) error {
	return tx.eachLayerInode([]byte{keyLayerInode}, fn)
}

func (tx *Tx) eachLayerInode(prefix []byte, fn func(layer uint64, id ID, i LayerInode) error) error {
	return tx.each(prefix, nil, func(key, v []byte) error {
		i, err := decodeLayerInode(v)
		if err != nil || len(key) != 9+idLen {
			return corrupt("inode", errShort)
		}
		return fn(binary.BigEndian.Uint64(key[1:]), decodeID(key[9:]), i)
	})
}

// LayerIsEmpty reports whether a layer has no records.
func (s *Store) LayerIsEmpty(layer uint64) (empty bool, err error) {
	empty = true
	err = s.View(func(tx *Tx) error {
		for _, kind := range []byte{keyLayerSlot, keyLayerInode} {
			err := tx.eachUntil(numKey(kind, layer), nil, func(_, _ []byte) (bool, error) { empty = false; return true, nil })
			if err != nil {
				return err
			}
		}
		return nil
	})
	return empty, err
}

// foldFactor and foldAlways say when it pays to fold a layer: copying a large one again and again for what little is above would not.
const (
	foldFactor = 4
	foldAlways = 1000 // records
)

// FoldLayer has a layer take over what the one below it has, whose only upper layer it is, and stand on what that stood on. ok is false where that can't be,
// as the content of a file that is metadata only above is in the layer below, or does not pay yet. Whoever reads both, one, or what is there in between
// sees the same. The caller removes the layer below then. If it is cut short, it can be called again.
func (s *Store) FoldLayer(below, above Layer) (ok bool, err error) {
	f, err := s.planFold(below.Num, above.Num)
	if err != nil || f == nil {
		return false, err
	}
	b := s.NewBatch()
	defer b.Cancel()
	for slot, h := range f.slots {
		if err := b.Set(appendSlot(numKey(keyLayerSlot, above.Num), slot), h.encode()); err != nil {
			return false, err
		}
	}
	for _, slot := range f.dead {
		if err := b.wb.Delete(appendSlot(numKey(keyLayerSlot, above.Num), slot)); err != nil {
			return false, err
		}
	}
	for id, i := range f.inodes {
		if err := b.Set(appendID(numKey(keyLayerInode, above.Num), id), i.encode()); err != nil {
			return false, err
		}
	}
	if err := b.Flush(); err != nil {
		return false, err
	}
	above.Parent, below.Into = below.Parent, above.Num
	return true, s.Update(func(tx *Tx) error {
		if err := tx.PutLayer(above); err != nil {
			return err
		}
		return tx.PutLayer(below)
	})
}

// layerFold is what a layer takes over.
type layerFold struct {
	slots  map[Slot]LayerSlot
	inodes map[ID]LayerInode
	dead   []Slot // of its own, in directories that are gone
}

// layerRecords are all records of a layer.
type layerRecords struct {
	slots  map[Slot]LayerSlot
	inodes map[ID]LayerInode
}

func (r layerRecords) len() int { return len(r.slots) + len(r.inodes) }

func (tx *Tx) layerRecords(layer uint64) (r layerRecords, err error) {
	r = layerRecords{map[Slot]LayerSlot{}, map[ID]LayerInode{}}
	err = tx.EachLayerSlot(layer, func(slot Slot, h LayerSlot) error { r.slots[slot] = h; return nil })
	if err != nil {
		return r, err
	}
	return r, tx.EachLayerInode(layer, func(id ID, i LayerInode) error { r.inodes[id] = i; return nil })
}

// planFold gives the records of a layer that the one above has none in the place of; nil where they can't be folded, or should not.
func (s *Store) planFold(below, above uint64) (*layerFold, error) {
	var b, a layerRecords
	err := s.View(func(tx *Tx) (err error) {
		if b, err = tx.layerRecords(below); err != nil {
			return err
		}
		a, err = tx.layerRecords(above)
		return err
	})
	if err != nil || b.len() > foldAlways && b.len() > foldFactor*a.len() {
		return nil, err
	}
	f := &layerFold{slots: map[Slot]LayerSlot{}, inodes: map[ID]LayerInode{}}
	gone := goneIn(b, a)
	for id, i := range b.inodes {
		over, covered := a.inodes[id]
		if covered && over.MetaOnly && !i.MetaOnly {
			return nil, nil
		}
		if !covered && !gone[id] {
			f.inodes[id] = i
		}
	}
	for slot, h := range b.slots {
		if _, covered := a.slots[slot]; !covered && !gone[slot.Dir] {
			f.slots[slot] = h
		}
	}
	for slot := range a.slots {
		if gone[slot.Dir] {
			f.dead = append(f.dead, slot)
		}
	}
	return f, nil
}

// goneIn gives the inodes that a branch has made, whose names are all in a layer, and that have none any more with the layer above it. Nothing can
// name them again.
func goneIn(below, above layerRecords) map[ID]bool {
	left := map[ID]int{}
	for id, i := range below.inodes {
		if _, changed := above.inodes[id]; !changed && id.Birth == BornInBranch {
			left[id] = max(int(i.Nlink), 1)
		}
	}
	for slot, h := range below.slots {
		if _, covered := above.slots[slot]; covered {
			left[h.ID]--
		}
	}
	for _, h := range above.slots {
		left[h.ID]++
	}
	gone := map[ID]bool{}
	for id, n := range left {
		if _, made := below.inodes[id]; made && n <= 0 && id.Birth == BornInBranch {
			_, changed := above.inodes[id]
			gone[id] = !changed
		}
	}
	return gone
}

// DropLayers removes layers that no other layer stands on, with all their records, and gives the numbers that these alone have named in the pool. If
// it is cut short, it can be called again.
func (s *Store) DropLayers(layers []Layer) (pool []uint64, err error) {
	var keys [][]byte
	err = s.View(func(tx *Tx) error {
		for _, l := range layers {
			taken, err := tx.poolOf(l.Into)
			if err != nil {
				return err
			}
			if err := tx.EachLayerSlot(l.Num, func(slot Slot, _ LayerSlot) error {
				keys = append(keys, appendSlot(numKey(keyLayerSlot, l.Num), slot))
				return nil
			}); err != nil {
				return err
			}
			if err := tx.EachLayerInode(l.Num, func(id ID, i LayerInode) error {
				keys = append(keys, appendID(numKey(keyLayerInode, l.Num), id))
				if !taken[i.Pool] {
					pool = append(pool, i.Pool)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := s.deleteKeys(keys); err != nil { // first, as the layers' own records say that these are there
		return nil, err
	}
	crash.Point("layers-emptied")
	return pool, s.Update(func(tx *Tx) error {
		for _, l := range layers {
			if err := tx.delete(numKey(keyLayer, l.Num)); err != nil {
				return err
			}
		}
		return nil
	})
}

// poolOf gives the numbers that a layer names in the pool; none for layer 0.
func (tx *Tx) poolOf(layer uint64) (map[uint64]bool, error) {
	if layer == 0 {
		return nil, nil
	}
	pool := map[uint64]bool{}
	err := tx.EachLayerInode(layer, func(_ ID, i LayerInode) error { pool[i.Pool] = true; return nil })
	return pool, err
}

func (s *Store) deleteKeys(keys [][]byte) error {
	if len(keys) == 0 {
		return nil
	}
	b := s.NewBatch()
	defer b.Cancel()
	for _, k := range keys {
		if err := b.wb.Delete(k); err != nil {
			return err
		}
	}
	return b.Flush()
}

// PutBranch writes the record of a branch.
func (tx *Tx) PutBranch(b Branch) error { return tx.putJSON(numKey(keyBranch, b.Num), b) }

// DeleteBranch removes it.
func (tx *Tx) DeleteBranch(num uint64) error { return tx.delete(numKey(keyBranch, num)) }

// Branches gives all branches, whatever their status, in the order in which they were made.
func (tx *Tx) Branches() ([]Branch, error) { return eachJSON[Branch](tx, keyBranch, "branch") }

// PutBranchCheckpoint writes the record of a branch's checkpoint.
func (tx *Tx) PutBranchCheckpoint(c BranchCheckpoint) error {
	return tx.putJSON(append([]byte{keyBranchCheckpoint}, c.ID...), c)
}

// DeleteBranchCheckpoint removes it.
func (tx *Tx) DeleteBranchCheckpoint(id string) error {
	return tx.delete(append([]byte{keyBranchCheckpoint}, id...))
}

// BranchCheckpoints gives the checkpoints of all branches.
func (tx *Tx) BranchCheckpoints() ([]BranchCheckpoint, error) {
	return eachJSON[BranchCheckpoint](tx, keyBranchCheckpoint, "checkpoint")
}

func (tx *Tx) putJSON(key []byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Set(key, b)
}

func eachJSON[T any](tx *Tx, kind byte, what string) (all []T, err error) {
	err = tx.each([]byte{kind}, nil, func(_, b []byte) error {
		var v T
		if err := json.Unmarshal(b, &v); err != nil {
			return corrupt(what, err)
		}
		all = append(all, v)
		return nil
	})
	return all, err
}
