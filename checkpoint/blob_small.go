package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/hyperfs/hyperfs/internal/crash"
)

// Limits of blobs.
const (
	smallMax  = 64 << 10 // bytes; a larger blob is a file
	keepChunk = 17 << 16 // bytes that one transaction is given, at most: where each has to reach the disk, the database takes no more than 1.2 MB
	storedMax = 1 << 20  // blobs that storedBlobs remembers, at most
)

func blobKey(s sum) []byte { return append(append(make([]byte, 0, 1+len(s)), keyBlob), s[:]...) }

func sumOfKey(key []byte) (s sum, ok bool) { return s, copy(s[:], key[1:]) == len(s) }

// storedBlobs remembers which small blobs the database may have, by how their sums begin: so what is new mostly needs no look into it.
type storedBlobs struct {
	mu     sync.Mutex // guards what follows
	loaded bool
	begins map[uint64]struct{} // nil once there are too many
}

// load asks the database, the first time.
func (b *storedBlobs) load(s *Store) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loaded {
		return nil
	}
	b.begins = map[uint64]struct{}{}
	err := s.View(func(tx *Tx) error {
		return tx.eachSize([]byte{keyBlob}, func(key []byte, _ int64) error {
			if sum, ok := sumOfKey(key); ok {
				b.add(sum)
			}
			return nil
		})
	})
	b.loaded = err == nil
	return err
}

// add notes one that is about to be there. The caller holds mu.
func (b *storedBlobs) add(s sum) {
	if b.begins == nil {
		return
	}
	if b.begins[binary.BigEndian.Uint64(s[:])] = struct{}{}; len(b.begins) > storedMax {
		b.begins = nil
	}
}

// maybe gives which of the small blobs may be there, and notes all as about to be.
func (b *storedBlobs) maybe(blobs [][]byte, sums []sum) []bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]bool, len(sums))
	for i, s := range sums {
		_, ok := b.begins[binary.BigEndian.Uint64(s[:])]
		list[i] = ok || b.begins == nil
		if len(blobs[i]) <= smallMax {
			b.add(s)
		}
	}
	return list
}

// keepSmall puts blobs into the database that are not there.
func (t *Turns) keepSmall(blobs [][]byte, sums []sum) error {
	missing, size, err := t.missing(blobs, sums)
	if err != nil {
		return err
	}
	room := make([]byte, 0, size) // for the keys and values, which are kept until the database has them
	var writes []write
	from := 0
	for k, i := range missing {
		at := len(room)
		room = append(append(append(room, keyBlob), sums[i][:]...), blobs[i]...)
		split := at + 1 + len(sum{})
		writes = append(writes, write{key: room[at:split:split], value: room[split:len(room):len(room)]})
		if k+1 < len(missing) && len(room)-from+1+len(sum{})+len(blobs[missing[k+1]]) <= keepChunk {
			continue
		}
		if err := t.s.space.check(); err != nil {
			return err
		}
		if err := t.s.commit(writes); err != nil {
			return err
		}
		writes, from = nil, len(room)
	}
	return nil
}

// missing gives the indexes of the small blobs that the database does not have as they are, each content once, and how many bytes they take there.
func (t *Turns) missing(blobs [][]byte, sums []sum) (list []int, size int, err error) {
	if err := t.stored.load(t.s); err != nil {
		return nil, 0, err
	}
	maybe := t.stored.maybe(blobs, sums)
	seen := make(map[sum]struct{}, len(sums))
	err = t.s.Get(func(tx *Tx) error {
		for i, b := range blobs {
			if _, ok := seen[sums[i]]; ok || len(b) > smallMax {
				continue
			}
			seen[sums[i]] = struct{}{}
			same := false
			if maybe[i] {
				if _, err := tx.get(blobKey(sums[i]), func(v []byte) error { same = bytes.Equal(v, b); return nil }); err != nil {
					return err
				}
			}
			if !same {
				list, size = append(list, i), size+1+len(sum{})+len(b)
			}
		}
		return nil
	})
	return list, size, err
}

// readSmall gives a blob of the database.
func (t *Turns) readSmall(b Blob, s sum) (data []byte, err error) {
	var ok bool
	err = t.s.Get(func(tx *Tx) (err error) {
		ok, err = tx.get(blobKey(s), func(v []byte) error { data = append(make([]byte, 0, len(v)), v...); return nil })
		return err
	})
	if err == nil && !ok {
		err = missingBlob(b)
	}
	return data, err
}

// sweepSmall removes blobs from the database.
func (t *Turns) sweepSmall(ctx context.Context, needed map[sum]struct{}) (n int, freed int64, err error) {
	type blob struct {
		sum
		size int64
	}
	var extra []blob
	err = t.s.View(func(tx *Tx) error {
		return tx.eachSize([]byte{keyBlob}, func(key []byte, size int64) error {
			s, ok := sumOfKey(key)
			if _, need := needed[s]; ok && !need {
				extra = append(extra, blob{s, size})
			}
			return ctx.Err()
		})
	})
	for some := range slices.Chunk(extra, turnChunk) {
		if err != nil {
			break
		}
		var writes []write
		err = t.remove(func(unused func(sum) bool) error {
			for _, b := range some {
				if unused(b.sum) {
					writes = append(writes, write{key: blobKey(b.sum), deleted: true})
					n, freed = n+1, freed+b.size
				}
			}
			if err := t.s.space.check(); err != nil || len(writes) == 0 {
				return err
			}
			return t.s.commit(writes)
		})
		crash.Point("turn-swept")
	}
	return n, freed, err
}
