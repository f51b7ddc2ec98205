package checkpoint

import (
	"encoding/binary"
	"errors"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
)

// Fold is what a range of epochs says about the state at its beginning: for every slot and inode the earliest record.
type Fold struct {
	Slots    map[Slot]Occupant
	Attrs    map[ID]Attr
	Contents map[ID]Content // joined up to the first that is whole
	Saved    map[ID]Epoch   // the epoch of the earliest content record
	WholeIn  map[ID]Epoch   // the epoch of the whole preimage that a content has, where that is known
	Xattrs   map[ID][]Xattr
	XattrsIn map[ID]Epoch  // the epoch of that record
	Linked   map[ID][]Slot // names that old inodes were given
	Outside  map[ID]string // paths of what was changed while nobody watched
	Since    map[ID]Epoch  // the epoch in which that was found
}

// Empty reports whether nothing was recorded.
func (f *Fold) Empty() bool {
	return len(f.Slots) == 0 && len(f.Attrs) == 0 && len(f.Contents) == 0 && len(f.Xattrs) == 0
}

func newFold() *Fold {
	return &Fold{
		Slots: map[Slot]Occupant{}, Attrs: map[ID]Attr{}, Contents: map[ID]Content{}, Saved: map[ID]Epoch{}, WholeIn: map[ID]Epoch{},
		Xattrs: map[ID][]Xattr{}, XattrsIn: map[ID]Epoch{}, Linked: map[ID][]Slot{}, Outside: map[ID]string{}, Since: map[ID]Epoch{},
	}
}

// addContent puts the record of an epoch behind those of earlier ones.
func (f *Fold) addContent(e Epoch, id ID, c Content) {
	have, ok := f.Contents[id]
	if !ok {
		f.Saved[id] = e
	}
	if have.Whole() {
		return
	}
	have.take(c)
	f.Contents[id] = have
	if c.Whole() && len(c.Parts) == 0 { // else the whole preimage may be of a later epoch, see joinContents
		f.WholeIn[id] = e
	}
}

// Fold reads the records of the epochs from ≤ e < to; to 0 means without end. Aliases are resolved. A record that
// can't be read is an integrity error.
func (s *Store) Fold(from, to Epoch) (*Fold, error) {
	f := newFold()
	err := s.View(func(tx *Tx) error {
		err := tx.eachEpoch(keySlot, from, to, func(key, v []byte) error {
			slot := decodeSlot(key[9:])
			slot.Dir = s.Resolve(slot.Dir)
			o, err := decodeOccupant(v)
			o.ID = s.Resolve(o.ID)
			return first(f.Slots, slot, o, err)
		})
		if err != nil {
			return err
		}
		err = tx.eachEpoch(keyAttr, from, to, func(key, v []byte) error {
			a, err := decodeAttr(v)
			a.At.Dir = s.Resolve(a.At.Dir)
			return first(f.Attrs, s.Resolve(decodeID(key[9:])), a, err)
		})
		if err != nil {
			return err
		}
		err = tx.eachEpoch(keyContent, from, to, func(key, v []byte) error {
			c, err := decodeContent(v)
			if err == nil {
				f.addContent(keyEpoch(key), s.Resolve(decodeID(key[9:])), c)
			}
			return err
		})
		if err != nil {
			return err
		}
		err = tx.eachEpoch(keyXattrs, from, to, func(key, v []byte) error {
			x, err := decodeXattrs(v)
			id := s.Resolve(decodeID(key[9:]))
			return errors.Join(first(f.Xattrs, id, x, err), first(f.XattrsIn, id, keyEpoch(key), nil))
		})
		if err != nil {
			return err
		}
		err = tx.eachEpoch(keyLinked, from, to, func(key, _ []byte) error {
			id, slot := s.Resolve(decodeID(key[9:])), decodeSlot(key[9+idLen:])
			slot.Dir = s.Resolve(slot.Dir)
			f.Linked[id] = append(f.Linked[id], slot)
			return nil
		})
		if err != nil {
			return err
		}
		return tx.eachEpoch(keyOutside, from, to, func(key, v []byte) error {
			id := s.Resolve(decodeID(key[9:]))
			return errors.Join(first(f.Outside, id, string(v), nil), first(f.Since, id, keyEpoch(key), nil))
		})
	})
	return f, err
}

// first keeps the earliest: keys come in the order of epochs.
func first[K comparable, V any](m map[K]V, k K, v V, err error) error {
	if err != nil {
		return err
	}
	if _, ok := m[k]; !ok {
		m[k] = v
	}
	return nil
}

// eachEpoch calls fn for all records of a kind in from ≤ epoch < to; to 0 means without end.
func (tx *Tx) eachEpoch(kind byte, from, to Epoch, fn func(key, value []byte) error) error {
	min := 9 + idLen
	return tx.eachUntil([]byte{kind}, epochKey(kind, from), func(key, v []byte) (bool, error) {
		if len(key) < min {
			return false, errs.New(errs.Integrity, "read undo log", "", "a record's key has %d bytes", len(key))
		}
		if to != 0 && keyEpoch(key) >= to {
			return true, nil
		}
		if err := fn(key, v); err != nil {
			return false, errs.Wrap(errs.Integrity, "read undo log", "", err)
		}
		return false, nil
	})
}

// EachContent calls fn for every content record from an epoch on, in the order of epochs.
func (s *Store) EachContent(from Epoch, fn func(Epoch, Content) error) error {
	return s.View(func(tx *Tx) error {
		return tx.eachEpoch(keyContent, from, 0, func(key, v []byte) error {
			c, err := decodeContent(v)
			if err != nil {
				return err
			}
			return fn(keyEpoch(key), c)
		})
	})
}

// Count gives how many slot records there are from an epoch on, and how many inodes have attribute records. It stops
// at max of each.
func (s *Store) Count(from Epoch, max int) (slots, inodes int, err error) {
	err = s.View(func(tx *Tx) error {
		if slots, err = tx.countFrom(keySlot, from, 0, max); err != nil {
			return err
		}
		inodes, err = tx.countFrom(keyAttr, from, 0, max)
		return err
	})
	return slots, inodes, err
}

// Freed is what dropped records had named: it may be without any further use.
type Freed struct {
	Occupants []ID
	Contents  []strategy.Ref
	Records   int
}

// DropEpochs deletes all records of the epochs from ≤ e < to. Use it where no checkpoint needs them.
func (s *Store) DropEpochs(from, to Epoch) (Freed, error) {
	return s.deleteRecords(from, to, func(byte, []byte) bool { return false })
}

// FoldEpochs joins the epochs from ≤ e < to, that no checkpoint stands between any more: of several records of one
// slot or inode the earliest stays, where it is. A content that is not whole takes in what the later ones say.
func (s *Store) FoldEpochs(from, to Epoch) (Freed, error) {
	if err := s.joinContents(from, to); err != nil {
		return Freed{}, err
	}
	seen := map[string]bool{}
	return s.deleteRecords(from, to, func(kind byte, key []byte) bool {
		k := string(kind) + string(key[9:])
		if seen[k] {
			return false
		}
		seen[k] = true
		return true
	})
}

func (s *Store) deleteRecords(from, to Epoch, keep func(kind byte, key []byte) bool) (Freed, error) {
	var f Freed
	wb := s.db.NewWriteBatch()
	defer wb.Cancel()
	drop := func(key []byte) error {
		f.Records++
		return wb.Delete(append([]byte(nil), key...))
	}
	err := s.View(func(tx *Tx) error {
		err := tx.eachEpoch(keySlot, from, to, func(key, v []byte) error {
			if keep(keySlot, key) {
				return nil
			}
			o, err := decodeOccupant(v)
			if err != nil {
				return err
			}
			if !o.ID.IsZero() {
				f.Occupants = append(f.Occupants, s.Resolve(o.ID))
				if err := wb.Delete(appendSlot(reverseKey(o.ID, keyEpoch(key)), decodeSlot(key[9:]))); err != nil {
					return err
				}
				// The mark stays while the epoch has a record; a mark without one does no harm.
				if err := wb.Delete(reverseKey(o.ID, keyEpoch(key))); err != nil {
					return err
				}
			}
			return drop(key)
		})
		if err != nil {
			return err
		}
		err = tx.eachEpoch(keyContent, from, to, func(key, v []byte) error {
			if keep(keyContent, key) {
				return nil
			}
			c, err := decodeContent(v)
			if err != nil {
				return err
			}
			f.Contents = append(f.Contents, c.Refs()...)
			return drop(key)
		})
		if err != nil {
			return err
		}
		for _, kind := range []byte{keyAttr, keyXattrs, keyLinked, keyNames, keyOutside, keyReplaced} {
			err := tx.eachEpoch(kind, from, to, func(key, _ []byte) error {
				if keep(kind, key) {
					return nil
				}
				return drop(key)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	return f, wb.Flush()
}

// SweepLocs deletes the locations of inodes that keep does not ask for, and returns how many.
func (s *Store) SweepLocs(keep func(ID) bool) (int, error) {
	n := 0
	wb := s.db.NewWriteBatch()
	defer wb.Cancel()
	err := s.View(func(tx *Tx) error {
		return tx.each([]byte{keyLoc}, nil, func(key, _ []byte) error {
			if keep(decodeID(key[1:])) {
				return nil
			}
			n++
			return wb.Delete(append([]byte(nil), key...))
		})
	})
	if err != nil {
		return 0, err
	}
	return n, wb.Flush()
}

// SweepReverse deletes reverse entries whose slot record is gone, and marks of epochs before min. It returns how many.
func (s *Store) SweepReverse(min Epoch) (int, error) {
	n := 0
	wb := s.db.NewWriteBatch()
	defer wb.Cancel()
	err := s.View(func(tx *Tx) error {
		return tx.each([]byte{keyReverse}, nil, func(key, _ []byte) error {
			e := Epoch(binary.BigEndian.Uint64(key[1+idLen:]))
			if len(key) == 1+idLen+8 {
				if e >= min {
					return nil
				}
			} else if ok, err := tx.HasSlot(e, decodeSlot(key[1+idLen+8:])); err != nil || ok {
				return err
			}
			n++
			return wb.Delete(append([]byte(nil), key...))
		})
	})
	if err != nil {
		return 0, err
	}
	return n, wb.Flush()
}

// CountRange gives how many slots and inodes the epochs from ≤ e < to have records of; to 0 means without end. It stops
// at max of each.
func (s *Store) CountRange(from, to Epoch, max int) (int, error) {
	total := 0
	err := s.View(func(tx *Tx) error {
		for _, kind := range []byte{keySlot, keyAttr} {
			n, err := tx.countFrom(kind, from, to, max)
			if err != nil {
				return err
			}
			total += n
		}
		return nil
	})
	return total, err
}

// Named is everything that the undo log refers to.
type Named struct {
	Occupants map[ID]bool             // of slot records
	Inodes    map[ID]bool             // of all other records, and directories of slot records
	Contents  map[string]strategy.Ref // by name
	Locs      map[ID]Loc
}

// All reads the whole undo log.
func (s *Store) All() (*Named, error) {
	a := &Named{map[ID]bool{}, map[ID]bool{}, map[string]strategy.Ref{}, map[ID]Loc{}}
	err := s.View(func(tx *Tx) error {
		err := tx.eachEpoch(keySlot, 0, 0, func(key, v []byte) error {
			a.Inodes[s.Resolve(decodeSlot(key[9:]).Dir)] = true
			o, err := decodeOccupant(v)
			if !o.ID.IsZero() {
				a.Occupants[s.Resolve(o.ID)] = true
			}
			return err
		})
		if err != nil {
			return err
		}
		err = tx.eachEpoch(keyContent, 0, 0, func(key, v []byte) error {
			c, err := decodeContent(v)
			for _, ref := range c.Refs() {
				a.Contents[ref.Name] = ref
			}
			return err
		})
		if err != nil {
			return err
		}
		err = tx.eachEpoch(keyAttr, 0, 0, func(key, v []byte) error {
			r, err := decodeAttr(v)
			a.Inodes[s.Resolve(decodeID(key[9:]))] = true
			a.Inodes[s.Resolve(r.At.Dir)] = true
			return err
		})
		if err != nil {
			return err
		}
		err = tx.eachEpoch(keyLinked, 0, 0, func(key, _ []byte) error {
			a.Inodes[s.Resolve(decodeID(key[9:]))] = true
			a.Inodes[s.Resolve(decodeSlot(key[9+idLen:]).Dir)] = true
			return nil
		})
		if err != nil {
			return err
		}
		return tx.each([]byte{keyLoc}, nil, func(key, v []byte) error {
			l, err := decodeLoc(v)
			for i := range l.Slots {
				l.Slots[i].Dir = s.Resolve(l.Slots[i].Dir)
			}
			a.Locs[s.Resolve(decodeID(key[1:]))] = l
			return err
		})
	})
	return a, err
}

// CheckReverse proves that the reverse index and the slot records agree, and calls report for what does not.
func (s *Store) CheckReverse(report func(what string)) error {
	return s.View(func(tx *Tx) error {
		err := tx.eachEpoch(keySlot, 0, 0, func(key, v []byte) error {
			o, err := decodeOccupant(v)
			if err != nil || o.ID.IsZero() {
				return err
			}
			ok, err := tx.has(appendSlot(reverseKey(o.ID, keyEpoch(key)), decodeSlot(key[9:])))
			if err == nil && !ok {
				report("the slot record of " + decodeSlot(key[9:]).Name + " is missing in the index by inode")
			}
			return err
		})
		if err != nil {
			return err
		}
		return tx.each([]byte{keyReverse}, nil, func(key, _ []byte) error {
			if len(key) <= 1+idLen+8 {
				return nil
			}
			e, slot := Epoch(binary.BigEndian.Uint64(key[1+idLen:])), decodeSlot(key[1+idLen+8:])
			o, ok, err := tx.Slot(e, slot)
			if err == nil && (!ok || o.ID != decodeID(key[1:])) {
				report("the index by inode names a slot record of " + slot.Name + " that is missing")
			}
			return err
		})
	})
}
