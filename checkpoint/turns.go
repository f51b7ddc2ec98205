package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// turnsName is the directory of the store that has the larger blobs of turns.
const turnsName = "turns"

// turnChunk is how many records one transaction deletes, at most.
const turnChunk = 256

// Turns are the records of turns, and the blobs that their states are made of. Its methods may be called concurrently.
//
// A blob that no record names may be removed at any time, unless somebody uses the blobs: whoever keeps some calls Using before, and its end after the
// record that names them is committed. What is not kept again but taken from the record of another turn is safe as long as that one is there: so nobody deletes it before
// the new record is committed.
type Turns struct {
	s      *Store
	dir    string // see turnsName
	sync   bool   // files reach the disk before Keep returns
	stored storedBlobs

	sweep sync.Mutex // held by whoever removes blobs, or counts on it that none are; before mu
	file  sync.Mutex // held while a file is written: the name that it has meanwhile is the same for all

	mu       sync.Mutex       // guards what follows; held while blobs are removed, so that nobody finds one that is about to go
	users    int              // calls of Using that have not ended
	sweeping bool             // so it is with a sweep
	held     map[sum]struct{} // what was kept since there were no users and no sweep
}

func newTurns(s *Store, syncs bool) *Turns {
	return &Turns{s: s, dir: filepath.Join(s.dir, turnsName), sync: syncs, held: map[sum]struct{}{}}
}

// Turns gives the turns of the store.
func (s *Store) Turns() *Turns { return s.turns }

func turnKey(id string) []byte { return append([]byte{keyTurn}, id...) }

// All gives the records of all turns, by ID, and those that can't be read. The error of such a one has the code INTEGRITY and names it.
func (t *Turns) All() (all []Turn, damaged []Damaged, err error) {
	err = t.s.View(func(tx *Tx) error {
		return tx.each([]byte{keyTurn}, nil, func(key, v []byte) error {
			r, err := decodeTurn(key, v)
			if err != nil {
				damaged = append(damaged, Damaged{string(key[1:]), err})
				return nil
			}
			all = append(all, r)
			return nil
		})
	})
	return all, damaged, err
}

// Get gives the record of one turn. NOT_FOUND says that there is none, INTEGRITY that it can't be read.
func (t *Turns) Get(id string) (r Turn, err error) {
	var ok bool
	err = t.s.Get(func(tx *Tx) (err error) { r, ok, err = tx.Turn(id); return err })
	if err == nil && !ok {
		err = errs.New(errs.NotFound, "read turn", id, "there is no such turn")
	}
	return r, err
}

// Put writes the records of turns, all in one transaction.
func (t *Turns) Put(turns ...Turn) error {
	return t.s.Update(func(tx *Tx) error {
		for _, r := range turns {
			if err := tx.PutTurn(r); err != nil {
				return err
			}
		}
		return nil
	})
}

// Delete removes the records of turns, also damaged ones. What there is no record of is passed over. Many are not removed as one. Their blobs stay until the next Sweep.
func (t *Turns) Delete(ids ...string) error {
	for some := range slices.Chunk(ids, turnChunk) {
		err := t.s.Update(func(tx *Tx) error {
			for _, id := range some {
				if err := tx.delete(turnKey(id)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// PutTurn writes the record of a turn. Its blobs are kept by then.
func (tx *Tx) PutTurn(r Turn) error {
	r.FilesGone = false
	return tx.putJSON(turnKey(r.ID), r)
}

// Turn gives the record of a turn, if there is one. INTEGRITY says that it can't be read.
func (tx *Tx) Turn(id string) (r Turn, ok bool, err error) {
	key := turnKey(id)
	ok, err = tx.get(key, func(v []byte) (err error) { r, err = decodeTurn(key, v); return err })
	return r, ok, err
}

func decodeTurn(key, v []byte) (r Turn, err error) {
	id := string(key[1:])
	if err = json.Unmarshal(v, &r); err != nil {
		return r, errs.New(errs.Integrity, "read turn", id, "its record is corrupt: %w", err)
	}
	if r.ID != id {
		return r, errs.New(errs.Integrity, "read turn", id, "its record is of another turn")
	}
	return r, nil
}

// Using keeps the blobs that are kept from now on, or found to be there, until done is called. It waits for nothing.
func (t *Turns) Using() (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users++
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.users--
		t.release()
	})
}

// heldMax is of how many blobs the room is used again.
const heldMax = 1 << 14

// release forgets what was kept, once nobody needs that. The caller holds mu.
func (t *Turns) release() {
	switch {
	case t.users > 0 || t.sweeping:
	case len(t.held) > heldMax:
		t.held = map[sum]struct{}{}
	default:
		clear(t.held)
	}
}

// Keep makes blobs safe, and gives their names, in the same order. What is there already is not written again, unless it is damaged. After an error, some of them may be
// there. CAPACITY says that the disk is full. It keeps none of the slices.
func (t *Turns) Keep(blobs ...[]byte) ([]Blob, error) {
	defer t.Using()()
	sums := sumAll(blobs)
	t.hold(sums)
	names := make([]Blob, len(blobs))
	for i, b := range blobs {
		names[i] = blobOf(sums[i], int64(len(b)))
	}
	err := t.keepSmall(blobs, sums)
	for i, b := range blobs {
		if err == nil && len(b) > smallMax {
			err = t.keepFile(names[i], b)
		}
	}
	if err != nil {
		return nil, errs.Ensure("keep state of turn", "", err)
	}
	crash.Point("turn-kept")
	return names, nil
}

func (t *Turns) hold(sums []sum) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range sums {
		t.held[s] = struct{}{}
	}
}

// Read gives the bytes of a blob. INTEGRITY says that it is missing or damaged.
func (t *Turns) Read(b Blob) ([]byte, error) {
	s, size, ok := b.parse()
	if !ok {
		return nil, errs.New(errs.Integrity, "read state of turn", string(b), "this names no blob")
	}
	read := t.readSmall
	if size > smallMax {
		read = t.readFile
	}
	data, err := read(b, s)
	if err == nil && (int64(len(data)) != size || sumOf(data) != s) {
		err = errs.New(errs.Integrity, "read state of turn", string(b), "it is damaged: its checksum is wrong")
	}
	return data, errs.Ensure("read state of turn", string(b), err)
}

// Sweep removes the blobs that no record of a turn names, by itself or by a page, and that nobody uses. Others may keep blobs meanwhile. Where a record or a page
// can't be read, it removes nothing, and fails with INTEGRITY.
func (t *Turns) Sweep(ctx context.Context) (blobs int, freed int64, err error) {
	t.sweep.Lock()
	defer t.sweep.Unlock()
	t.begin()
	defer t.end()
	defer t.s.Urgent()()
	needed, err := t.needed(ctx)
	if err != nil {
		return 0, 0, errs.Ensure("free states of turns", "", err)
	}
	blobs, freed, err = t.sweepSmall(ctx, needed)
	if err == nil {
		n, bytes, e := t.sweepFiles(ctx, needed)
		blobs, freed, err = blobs+n, freed+bytes, e
	}
	return blobs, freed, errs.Ensure("free states of turns", "", err)
}

// begin has what is kept from now on held until end: its record may be committed after the sweep has looked, and its user be gone.
func (t *Turns) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweeping = true
}

func (t *Turns) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweeping = false
	t.release()
}

// needed gives the blobs that records name, by themselves or by pages.
func (t *Turns) needed(ctx context.Context) (map[sum]struct{}, error) {
	all, damaged, err := t.All()
	if err == nil && len(damaged) > 0 {
		err = damaged[0].Err
	}
	if err != nil {
		return nil, err
	}
	needed, pages := map[sum]struct{}{}, map[Blob]bool{}
	for _, r := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		list := r.State.Blobs()
		for _, p := range r.State.Pages {
			if pages[p] {
				continue
			}
			pages[p] = true
			more, err := t.Page(p)
			if err != nil {
				return nil, err
			}
			list = append(list, more...)
		}
		for _, b := range list {
			s, _, ok := b.parse()
			if !ok {
				return nil, errs.New(errs.Integrity, "read turn", r.ID, "it names a blob %q", b)
			}
			needed[s] = struct{}{}
		}
	}
	return needed, nil
}

// Page gives the blobs that a page lists.
func (t *Turns) Page(p Blob) ([]Blob, error) {
	data, err := t.Read(p)
	if err != nil {
		return nil, err
	}
	list, err := DecodePage(data)
	if err != nil {
		return nil, errs.New(errs.Integrity, "read state of turn", string(p), "it is no page: %w", err)
	}
	return list, nil
}

// remove runs fn while nobody can find a blob: fn asks which are not in use, and removes them.
func (t *Turns) remove(fn func(unused func(sum) bool) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fn(func(s sum) bool { _, held := t.held[s]; return !held })
}

// Check calls found for every record of a turn that can't be read, and for every blob that is missing or damaged. It reads all of them.
func (t *Turns) Check(ctx context.Context, found func(where, what string)) error {
	t.sweep.Lock()
	defer t.sweep.Unlock()
	all, damaged, err := t.All()
	if err != nil {
		return err
	}
	for _, d := range damaged {
		found(d.ID, d.Err.Error())
	}
	checked := map[Blob]bool{}
	check := func(r *Turn, b Blob) {
		if checked[b] {
			return
		}
		checked[b] = true
		if _, err := t.Read(b); err != nil {
			found(r.ID, fmt.Sprintf("the state of the turn can't be had: %v", err))
		}
	}
	for i := range all {
		r := &all[i]
		for _, p := range r.State.Pages {
			if checked[p] {
				continue
			}
			checked[p] = true
			list, err := t.Page(p)
			if err != nil {
				found(r.ID, fmt.Sprintf("the state of the turn can't be had: %v", err))
			}
			for _, b := range list {
				check(r, b)
			}
		}
		for _, b := range r.State.Blobs() {
			check(r, b)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
