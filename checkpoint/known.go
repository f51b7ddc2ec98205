package checkpoint

import (
	"encoding/binary"
	"hash/maphash"
	"sync"
)

// Limits of what is remembered, in keys.
const (
	knownMax  = 1 << 18
	locsAtMax = 1 << 14 // with more of them in a store that is opened, they are not read for that
)

// knownKeys remembers which records the current epoch has, and of which inodes it is known where they are, by hashes of their keys: so what is asked before every first change,
// whether there is a record already, mostly needs no look into the database. An equal hash of another key costs that look, and so does what is no more there.
type knownKeys struct {
	seed maphash.Seed

	mu    sync.RWMutex        // guards what follows
	epoch Epoch               // 0 means that nothing is known
	keys  map[uint64]struct{} // nil means that nothing is known
	locs  map[uint64]struct{} // nil means that nothing is known
}

// BeginEpoch says that an epoch begins now that has no record yet. Nobody may write a record meanwhile.
func (s *Store) BeginEpoch(e Epoch) {
	k := &s.known
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch, k.keys = e, map[uint64]struct{}{}
}

// Untouched reports whether it is known that the current epoch has no record yet: the tree is what it was when it began.
func (s *Store) Untouched(e Epoch) bool {
	k := &s.known
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.epoch == e && k.keys != nil && len(k.keys) == 0
}

// recordOf gives the epoch of a record's key, and what of the key is remembered: in the index by inode whatever follows the epoch is
// left out.
func recordOf(key []byte) (e Epoch, part []byte, ok bool) {
	switch key[0] {
	case keySlot, keyAttr, keyContent, keyXattrs, keyNames:
		return keyEpoch(key), key, true
	case keyReverse:
		if len(key) < 1+idLen+8 {
			return 0, nil, false
		}
		return Epoch(binary.BigEndian.Uint64(key[1+idLen:])), key[:1+idLen+8], true
	}
	return 0, nil, false
}

// loadLocs reads which inodes have a location, unless there are too many. Nobody may write one meanwhile.
func (s *Store) loadLocs() error {
	locs := map[uint64]struct{}{}
	err := s.View(func(tx *Tx) error {
		return tx.eachUntil([]byte{keyLoc}, nil, func(key, _ []byte) (bool, error) {
			locs[maphash.Bytes(s.known.seed, key)] = struct{}{}
			return len(locs) > locsAtMax, nil
		})
	})
	if err == nil && len(locs) <= locsAtMax {
		s.known.mu.Lock()
		defer s.known.mu.Unlock()
		s.known.locs = locs
	}
	return err
}

// set gives where a key is remembered, and what of it; nil where nothing is known of such keys. The caller holds mu.
func (k *knownKeys) set(key []byte) (set *map[uint64]struct{}, part []byte) {
	if key[0] == keyLoc && k.locs != nil {
		return &k.locs, key
	}
	if e, part, ok := recordOf(key); ok && e == k.epoch && k.keys != nil {
		return &k.keys, part
	}
	return nil, nil
}

// note remembers a key that is about to be written.
func (k *knownKeys) note(key []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	set, part := k.set(key)
	if set == nil {
		return
	}
	(*set)[maphash.Bytes(k.seed, part)] = struct{}{}
	if len(*set) > knownMax {
		*set = nil
	}
}

// absent reports whether it is known that there is no such record.
func (k *knownKeys) absent(key []byte) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	set, part := k.set(key)
	if set == nil {
		return false
	}
	_, maybe := (*set)[maphash.Bytes(k.seed, part)]
	return !maybe
}
