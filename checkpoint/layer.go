package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// Layer is a set of changes to the layer below it, or to what main was at the beginning of an epoch. Layers form a tree. Numbers
// are given out by whoever makes layers, and are never used twice.
type Layer struct {
	Num    uint64
	Parent uint64 // 0 for a layer over main
	Epoch  Epoch  // of main, for such a layer; it is pinned as long as the layer is there
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
	return binary.AppendUvarint(b, uint64(l.Epoch))
}

func decodeLayer(num uint64, v []byte) (Layer, error) {
	d := newDecoder(v)
	l := Layer{Num: num, Parent: d.uvarint(), Epoch: Epoch(d.uvarint())}
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
	return binary.AppendUvarint(append(b, meta), uint64(i.Nlink))
}

func decodeLayerInode(v []byte) (LayerInode, error) {
	d := newDecoder(v)
	i := LayerInode{Pool: d.uvarint(), MetaOnly: d.byte() != 0, Nlink: uint32(d.uvarint())}
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

// DropLayers removes layers that no other layer lies over, with all their records, and gives the numbers that these named in the pool. If
// it is cut short, it can be called again.
func (s *Store) DropLayers(layers []uint64) (pool []uint64, err error) {
	var keys [][]byte
	err = s.View(func(tx *Tx) error {
		for _, num := range layers {
			if err := tx.EachLayerSlot(num, func(slot Slot, _ LayerSlot) error {
				keys = append(keys, appendSlot(numKey(keyLayerSlot, num), slot))
				return nil
			}); err != nil {
				return err
			}
			if err := tx.EachLayerInode(num, func(id ID, i LayerInode) error {
				keys = append(keys, appendID(numKey(keyLayerInode, num), id))
				pool = append(pool, i.Pool)
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
		for _, num := range layers {
			if err := tx.delete(numKey(keyLayer, num)); err != nil {
				return err
			}
		}
		return nil
	})
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
