// Package checkpoint is the store: checkpoint records, the undo log, and what must survive the daemon. It knows
// records, not files. Everything is kept in one BadgerDB in the store directory.
package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// FormatVersion is that of the store. A store of a later version is refused; an earlier one becomes one of this: in version 1, journals had no more of a head than
// their generation, and the database did not count what it was given. Fields that checkpoints have got since need no version: records are JSON, and
// an old one leaves them empty. Turns need none either: who does not know them leaves their records and blobs alone, and what has become of the checkpoints that they
// name meanwhile is found out when it is asked for.
const FormatVersion = 2

// Options of a store.
type Options struct {
	Sync    bool         // every commit reaches the disk before it returns
	Logger  *slog.Logger // nil means none
	Backend string       // who uses the store; "" means BackendFuse

	// Contents is called after every commit that has content records, by whoever committed; nil means nobody.
	Contents func()
}

// Store is an open store. Its methods may be called concurrently; a transaction belongs to one goroutine. It does not
// detect conflicts between transactions: the caller's locks keep writers of the same key apart.
type Store struct {
	db    *badger.DB
	dir   string
	lock  *os.File
	space *space

	contents func()   // see Options
	pending  *pending // nil where each commit reaches the disk before it returns
	synced   *synced  // where it does

	known knownKeys
	pasts pasts
	turns *Turns

	aliasMu sync.RWMutex // guards what follows
	aliases map[ID]ID
	remade  map[ID]remade // of the new ones
}

// remade is what a directory was before it was made anew.
type remade struct {
	old   ID
	epoch Epoch // in which that was
}

// Open opens the store in the directory dir, which exists, and makes one if there is none. It fails with BUSY where
// another process holds it, and with UNSUPPORTED where it has another format.
func Open(dir string, o Options) (*Store, error) {
	lock, err := lockStore(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, lock: lock, contents: o.Contents, known: knownKeys{seed: maphash.MakeSeed()}}
	s.pasts.s = s
	s.turns = newTurns(s, o.Sync)
	if err := s.open(o); err != nil {
		lock.Close()
		return nil, err
	}
	_ = os.Remove(filepath.Join(s.turns.dir, tempBlob)) // a death may have left it; the next one that is written takes its place anyway
	return s, nil
}

func (s *Store) open(o Options) error {
	if err := checkFormat(s.dir); err != nil {
		return err
	}
	if err := checkBackend(s.dir, cmp.Or(o.Backend, BackendFuse)); err != nil {
		return err
	}
	var err error
	if s.space, err = openSpace(s.dir); err != nil {
		return errs.Wrap(errs.Internal, "open store", "", err)
	}
	s.space.begin() // what an earlier process left may have to be freed first
	defer s.space.end()
	if err := s.space.check(); err != nil {
		return errors.Join(errs.New(errs.Capacity, "open store", "", "%w", err).WithHint("make some MiB of room on its filesystem"), s.space.close())
	}
	name := filepath.Join(s.dir, "db")
	err = checkTables(name)
	if err == nil {
		err = removeUnborn(name)
	}
	var db *badger.DB
	if err == nil {
		db, err = badger.Open(badgerOptions(name, o))
	}
	if err != nil {
		_ = s.space.close()
		return errs.New(errs.Integrity, "open store", "", "the database can't be opened: %w", err)
	}
	s.db, s.space.logs = db, name
	if s.pending, err = openPending(db, s.dir, s.space, o.Logger); err == nil && o.Sync {
		// The database has what an earlier process may have left in the journals; each commit goes there itself from now on.
		given := s.pending.given
		if s.pending, err = nil, s.pending.close(); err == nil {
			s.synced, err = openSynced(db, s.dir, given)
		}
	}
	if err != nil {
		return errors.Join(errs.New(errs.Integrity, "open store", "", "what was committed last can't be read: %w", err), db.Close(), s.space.close())
	}
	if err := cmp.Or(s.loadAliases(), s.loadLocs()); err != nil {
		if s.pending != nil {
			err = errors.Join(err, s.pending.close())
		}
		return errors.Join(err, db.Close(), s.space.close())
	}
	return nil
}

// removeUnborn deletes log files without a byte. Badger makes a file before it gives it its size, and refuses to open the database
// if a death between the two has left one.
func removeUnborn(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".vlog" && ext != ".mem" {
			continue
		}
		st, err := e.Info()
		if err == nil && st.Mode().IsRegular() && st.Size() == 0 {
			err = os.Remove(filepath.Join(dir, e.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// badgerOptions keeps the database small: the log is short-lived, and the daemon's memory is bounded. Values stay in
// the LSM tree, so that there is no value log to collect.
func badgerOptions(dir string, o Options) badger.Options {
	return badger.DefaultOptions(dir).
		WithSyncWrites(o.Sync).
		WithMemTableSize(8 << 20).
		WithNumMemtables(3).
		WithBaseTableSize(4 << 20).
		WithBaseLevelSize(16 << 20).
		WithNumLevelZeroTables(4).
		WithNumLevelZeroTablesStall(10).
		WithValueLogFileSize(16 << 20).
		WithValueThreshold(1 << 20).
		WithCompression(options.None).
		WithBlockCacheSize(0).
		WithIndexCacheSize(0).
		WithNumCompactors(2).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithLogger(badgerLogger{o.Logger})
}

// Close ends all use of the store.
func (s *Store) Close() error {
	var err error
	if s.pending != nil {
		err = s.pending.close()
	} else {
		err = s.synced.close()
	}
	return errors.Join(err, s.db.Close(), s.space.close(), s.lock.Close())
}

// Urgent lets writes go on, until the function that it gives is called, where there is hardly any room left: for the work
// that frees space.
func (s *Store) Urgent() (done func()) {
	s.space.begin()
	return s.space.end
}

func checkFormat(dir string) error {
	name := filepath.Join(dir, "format")
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return writeFormat(name)
	}
	if err != nil {
		return errs.Wrap(errs.Internal, "open store", "", err)
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return errs.New(errs.Integrity, "open store", "", "the format file holds %q, not a number", b)
	}
	if v < 1 || v > FormatVersion {
		return errs.New(errs.Unsupported, "open store", "", "the store has format %d, this hyperfs knows %d", v, FormatVersion).
			WithHint("use the hyperfs that made it, or remove .hyperfs to give up its checkpoints")
	}
	if v < FormatVersion {
		return writeFormat(name) // before anything else is written, so that an earlier hyperfs does not take what it can't read for nothing
	}
	return nil
}

func writeFormat(name string) error {
	return errs.Wrap(errs.Internal, "open store", "", writeWhole(name, strconv.Itoa(FormatVersion)+"\n"))
}

// writeWhole puts a file in place, of which a loss of power must not leave less than all.
func writeWhole(name, text string) error {
	tmp := name + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// Update runs fn in a transaction that is committed as one, or not at all. It must be small; see Batch. ENOSPC says that
// the disk is too full to write to the store; it is there before the disk is really full.
func (s *Store) Update(fn func(*Tx) error) error {
	if err := s.space.check(); err != nil {
		return err
	}
	tx := Tx{s: s, update: true}
	tx.writes = tx.few[:0]
	if s.pending != nil {
		tx.sets = s.pending.sets()
	}
	defer tx.discard()
	if err := fn(&tx); err != nil {
		return err
	}
	if err := s.commit(tx.writes); err != nil {
		s.pasts.distrust(err)
		return err
	}
	s.pasts.note(tx.writes)
	s.committed(tx.contents)
	return nil
}

// Get runs fn in a transaction that only reads, and no ranges of keys: it waits for nothing that was committed before to reach the database.
func (s *Store) Get(fn func(*Tx) error) error {
	tx := Tx{s: s, update: true}
	if s.pending != nil {
		tx.sets = s.pending.sets()
	}
	defer tx.discard()
	return fn(&tx)
}

func (s *Store) commit(writes []write) error {
	if s.pending != nil {
		return s.pending.commit(writes)
	}
	n := 0
	for _, w := range writes {
		n += len(w.key) + len(w.value)
	}
	if err := s.space.claim(n, len(writes)); err != nil {
		return err
	}
	return s.synced.commit(writes)
}

// settle has the database take what was committed before: what follows reads it by ranges of keys, or changes it directly.
func (s *Store) settle() error {
	if s.pending == nil {
		return nil
	}
	return s.pending.settle()
}

// committed tells who wants to know that content records were committed.
func (s *Store) committed(contents bool) {
	if contents && s.contents != nil {
		s.contents()
	}
}

// View runs fn in a transaction that only reads.
func (s *Store) View(fn func(*Tx) error) error {
	if err := s.settle(); err != nil {
		return err
	}
	return s.db.View(func(t *badger.Txn) error { return fn(&Tx{s: s, reading: t}) })
}

// Reader is a transaction that only reads and stays open, and shows the store as it was when it began. One goroutine may use it
// at a time; end it with Close.
type Reader struct{ Tx }

// NewReader begins one.
func (s *Store) NewReader() *Reader {
	err := s.settle()
	return &Reader{Tx{s: s, reading: s.db.NewTransaction(false), err: err}}
}

// Close ends it.
func (r *Reader) Close() { r.discard() }

// Batch collects any number of writes. They are not committed as one: only Flush says that all are there.
type Batch struct {
	s        *Store
	wb       *badger.WriteBatch
	contents bool    // there are content records among the writes
	noted    []write // those that an open Past has to know of
	err      error   // why it can't be committed
}

// NewBatch starts a batch; end it with Flush or Cancel.
func (s *Store) NewBatch() *Batch {
	// Before the first write: a large batch reaches the database in pieces, which what was committed earlier must not come after.
	err := s.settle()
	return &Batch{s: s, wb: s.db.NewWriteBatch(), err: err}
}

// Flush commits what is left and waits for it.
func (b *Batch) Flush() error {
	if err := b.s.space.check(); err != nil {
		return err
	}
	if err := cmp.Or(b.err, b.s.settle()); err != nil {
		return err
	}
	if err := b.wb.Flush(); err != nil {
		b.s.pasts.distrust(err) // some of it may be there
		return err
	}
	if err := b.s.gaveDirectly(); err != nil {
		b.s.pasts.distrust(err)
		return err
	}
	b.s.pasts.note(b.noted)
	b.s.committed(b.contents)
	return nil
}

// gaveDirectly notes that the database has got a batch.
func (s *Store) gaveDirectly() error {
	if s.pending != nil {
		return s.pending.gaveDirectly()
	}
	return s.synced.commit(nil)
}

// Set makes a change that Flush commits. It keeps both slices.
func (b *Batch) Set(key, value []byte) error {
	b.s.known.note(key)
	b.note(write{key: key, value: value})
	return b.wb.Set(key, value)
}

func (b *Batch) note(w write) {
	if b.s.pasts.any.Load() && slices.Contains(pastKinds, w.key[0]) {
		b.noted = append(b.noted, w)
	}
}

// Cancel drops what has not been committed yet. It does nothing after Flush.
func (b *Batch) Cancel() { b.wb.Cancel() }

// PutSlot writes a slot record with its reverse entry.
func (b *Batch) PutSlot(e Epoch, s Slot, o Occupant) error { return putSlot(b, e, s, o) }

// PutAttr writes an attribute record.
func (b *Batch) PutAttr(e Epoch, id ID, a Attr) error {
	return b.Set(inodeKey(keyAttr, e, id), a.encode())
}

// PutContent writes a content record.
func (b *Batch) PutContent(e Epoch, id ID, c Content) error {
	b.contents = true
	return b.Set(inodeKey(keyContent, e, id), c.encode())
}

// DeleteContent removes a content record.
func (b *Batch) DeleteContent(e Epoch, id ID) error {
	key := inodeKey(keyContent, e, id)
	b.note(write{key: key, deleted: true})
	return b.wb.Delete(key)
}

// PutXattrs writes an xattr record.
func (b *Batch) PutXattrs(e Epoch, id ID, xs []Xattr) error {
	return b.Set(inodeKey(keyXattrs, e, id), encodeXattrs(xs))
}

// PutNames is Tx.PutNames.
func (b *Batch) PutNames(e Epoch, id ID, n uint32) error {
	return b.Set(inodeKey(keyNames, e, id), encodeNames(n))
}

// PutReplaced notes that the rollback of an epoch is about to put the inode with in the place of id.
func (b *Batch) PutReplaced(e Epoch, id, with ID) error {
	return b.Set(inodeKey(keyReplaced, e, id), appendID(nil, with))
}

// Replaced gives what PutReplaced has noted for an epoch.
func (s *Store) Replaced(e Epoch) (map[ID]ID, error) {
	with := map[ID]ID{}
	err := s.View(func(tx *Tx) error {
		return tx.eachEpoch(keyReplaced, e, e+1, func(key, v []byte) error {
			if len(v) != idLen {
				return errs.New(errs.Integrity, "read the log", "", "%w", errShort)
			}
			with[decodeID(key[9:])] = decodeID(v)
			return nil
		})
	})
	return with, err
}

// PutOutside notes that an inode was changed while nobody watched.
func (b *Batch) PutOutside(e Epoch, id ID, path string) error {
	return b.Set(inodeKey(keyOutside, e, id), []byte(path))
}

// PutLoc writes where an inode is.
func (b *Batch) PutLoc(id ID, l Loc) error { return b.Set(idKey(keyLoc, id), encodeLoc(l)) }

// DeleteLoc forgets where an inode is.
func (b *Batch) DeleteLoc(id ID) error { return b.wb.Delete(idKey(keyLoc, id)) }

type setter interface{ Set(key, value []byte) error }

func putSlot(w setter, e Epoch, s Slot, o Occupant) error {
	if !o.ID.IsZero() {
		if err := w.Set(appendSlot(reverseKey(o.ID, e), s), nil); err != nil {
			return err
		}
	}
	return w.Set(slotKey(e, s), o.encode())
}

// Tx is a transaction. It must not be kept after the function that got it returns.
type Tx struct {
	s        *Store
	reading  *badger.Txn  // only reads; nil until it is wanted: see db
	sets     [2]*writeSet // what the database may not have
	update   bool
	writes   []write // not committed yet, in order
	contents bool    // there are content records among the writes
	err      error   // why nothing can be read

	// What most transactions need no more of, so that it is not allocated piece by piece.
	few   [2]write // for writes
	probe [96]byte // for the key that is looked for
	room  []byte   // for keys and values of writes, which are kept: so it is used for one transaction only
}

// slotKey and inodeKey give a key to look for, which is valid until the next one.
func (tx *Tx) slotKey(e Epoch, s Slot) []byte {
	return appendSlot(appendEpochKey(tx.probe[:0], keySlot, e), s)
}

func (tx *Tx) inodeKey(kind byte, e Epoch, id ID) []byte {
	return appendInodeKey(tx.probe[:0], kind, e, id)
}

// putInode writes a record of an inode, whose value appendValue appends.
func (tx *Tx) putInode(kind byte, e Epoch, id ID, appendValue func([]byte) []byte) error {
	if tx.room == nil {
		tx.room = make([]byte, 0, 256)
	}
	begin := len(tx.room)
	b := appendInodeKey(tx.room, kind, e, id)
	split := len(b)
	b = appendValue(b)
	tx.room = b
	return tx.Set(b[begin:split:split], b[split:len(b):len(b)])
}

// db begins to read from the database, which comes after sets were taken.
func (tx *Tx) db() *badger.Txn {
	if tx.reading == nil {
		tx.reading = tx.s.db.NewTransaction(false)
	}
	return tx.reading
}

func (tx *Tx) discard() {
	if tx.reading != nil {
		tx.reading.Discard()
	}
}

// Set makes a change that is committed with the transaction. It keeps both slices.
func (tx *Tx) Set(key, value []byte) error {
	tx.s.known.note(key)
	tx.writes = append(tx.writes, write{key: key, value: value})
	return nil
}

func (tx *Tx) delete(key []byte) error {
	tx.writes = append(tx.writes, write{key: key, deleted: true})
	return nil
}

// found gives what is known of a key without the database.
func (tx *Tx) found(key []byte) (w write, ok bool) {
	for _, w := range slices.Backward(tx.writes) {
		if bytes.Equal(w.key, key) {
			return w, true
		}
	}
	if tx.sets[0] == nil {
		return w, false
	}
	return tx.s.pending.find(tx.sets, key)
}

var errRange = errors.New("ranges of keys are not for transactions that write")

func (tx *Tx) has(key []byte) (bool, error) { return tx.get(key, func([]byte) error { return nil }) }

// get calls fn with the value of key, which it must not keep, and reports whether there was one.
func (tx *Tx) get(key []byte, fn func([]byte) error) (bool, error) {
	if tx.err != nil {
		return false, tx.err
	}
	if tx.s.known.absent(key) {
		return false, nil
	}
	if w, ok := tx.found(key); ok {
		if w.deleted {
			return false, nil
		}
		return true, fn(w.value)
	}
	item, err := tx.db().Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, item.Value(fn)
}

// HasSlot reports whether the epoch has a record of the slot.
func (tx *Tx) HasSlot(e Epoch, s Slot) (bool, error) { return tx.has(tx.slotKey(e, s)) }

// Slot gives the epoch's record of a slot.
func (tx *Tx) Slot(e Epoch, s Slot) (o Occupant, ok bool, err error) {
	ok, err = tx.get(tx.slotKey(e, s), func(v []byte) (err error) { o, err = decodeOccupant(v); return err })
	return o, ok, err
}

// PutSlot writes a slot record with its reverse entry.
func (tx *Tx) PutSlot(e Epoch, s Slot, o Occupant) error { return putSlot(tx, e, s, o) }

// MarkLinked notes that id predates the epoch and gets another name, in a slot that needs no record or has one.
func (tx *Tx) MarkLinked(e Epoch, id ID, s Slot) error {
	if err := tx.Set(appendSlot(inodeKey(keyLinked, e, id), s), nil); err != nil {
		return err
	}
	return tx.Set(reverseKey(id, e), nil)
}

// MarkedOld reports whether id is known to predate the epoch: marked, or named by one of its slot records.
func (tx *Tx) MarkedOld(e Epoch, id ID) (bool, error) { return tx.hasIndexed(reverseKey(id, e), 0) }

// Named reports whether any slot record of any epoch names id as an occupant.
func (tx *Tx) Named(id ID) (bool, error) {
	return tx.hasIndexed(idKey(keyReverse, id), 8)
}

// hasIndexed reports whether a key of the index by inode begins with prefix and is longer by more than so many bytes, or, for 0, has it at all.
func (tx *Tx) hasIndexed(prefix []byte, more int) (bool, error) {
	if tx.err != nil {
		return false, tx.err
	}
	if more == 0 && tx.s.known.absent(prefix) {
		return false, nil
	}
	for _, w := range tx.writes {
		if bytes.HasPrefix(w.key, prefix) && (more == 0 || len(w.key) > len(prefix)+more) {
			return true, nil
		}
	}
	if tx.sets[0] != nil && tx.s.pending.indexed(tx.sets, prefix) {
		return true, nil
	}
	it := tx.db().NewIterator(badger.IteratorOptions{Prefix: prefix})
	defer it.Close()
	for it.Seek(prefix); it.ValidForPrefix(prefix); it.Next() {
		if more == 0 || len(it.Item().Key()) > len(prefix)+more {
			return true, nil
		}
	}
	return false, nil
}

// HasAttr reports whether the epoch has an attribute record of id.
func (tx *Tx) HasAttr(e Epoch, id ID) (bool, error) { return tx.has(tx.inodeKey(keyAttr, e, id)) }

// HasContent reports whether the epoch has a content record of id.
func (tx *Tx) HasContent(e Epoch, id ID) (bool, error) { return tx.has(tx.inodeKey(keyContent, e, id)) }

// HasXattrs reports whether the epoch has an xattr record of id.
func (tx *Tx) HasXattrs(e Epoch, id ID) (bool, error) { return tx.has(tx.inodeKey(keyXattrs, e, id)) }

// PutAttr writes an attribute record.
func (tx *Tx) PutAttr(e Epoch, id ID, a Attr) error {
	return tx.putInode(keyAttr, e, id, a.append)
}

// PutContent writes a content record.
func (tx *Tx) PutContent(e Epoch, id ID, c Content) error {
	tx.contents = true
	return tx.putInode(keyContent, e, id, c.append)
}

// DeleteContent removes a content record.
func (tx *Tx) DeleteContent(e Epoch, id ID) error { return tx.delete(inodeKey(keyContent, e, id)) }

// Content gives the epoch's content record of id.
func (tx *Tx) Content(e Epoch, id ID) (c Content, ok bool, err error) {
	ok, err = tx.get(tx.inodeKey(keyContent, e, id), func(v []byte) (err error) { c, err = decodeContent(v); return err })
	return c, ok, err
}

// Attr gives the epoch's attribute record of id.
func (tx *Tx) Attr(e Epoch, id ID) (a Attr, ok bool, err error) {
	ok, err = tx.get(tx.inodeKey(keyAttr, e, id), func(v []byte) (err error) { a, err = decodeAttr(v); return err })
	return a, ok, err
}

// PutXattrs writes an xattr record.
func (tx *Tx) PutXattrs(e Epoch, id ID, xs []Xattr) error {
	return tx.Set(inodeKey(keyXattrs, e, id), encodeXattrs(xs))
}

// HasNames reports whether the epoch has a record of how many names id had.
func (tx *Tx) HasNames(e Epoch, id ID) (bool, error) { return tx.has(tx.inodeKey(keyNames, e, id)) }

// PutNames writes how many names id had.
func (tx *Tx) PutNames(e Epoch, id ID, n uint32) error {
	return tx.Set(inodeKey(keyNames, e, id), encodeNames(n))
}

// PutLoc writes where an inode is.
func (tx *Tx) PutLoc(id ID, l Loc) error { return tx.Set(idKey(keyLoc, id), encodeLoc(l)) }

// Loc gives where an inode is, if it is known.
func (tx *Tx) Loc(id ID) (l Loc, ok bool, err error) {
	ok, err = tx.get(idKey(keyLoc, id), func(v []byte) (err error) { l, err = decodeLoc(v); return err })
	return l, ok, err
}

// HasLoc reports whether it is known where id is.
func (tx *Tx) HasLoc(id ID) (bool, error) { return tx.has(idKey(keyLoc, id)) }

// PutCheckpoint writes a checkpoint record.
func (tx *Tx) PutCheckpoint(c Checkpoint) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return tx.Set(append([]byte{keyCheckpoint}, c.ID...), b)
}

// DeleteCheckpoint removes a checkpoint record.
func (tx *Tx) DeleteCheckpoint(id string) error {
	return tx.delete(append([]byte{keyCheckpoint}, id...))
}

// Checkpoints gives all checkpoint records, in the order of their IDs, and those that can't be read.
func (tx *Tx) Checkpoints() (all []Checkpoint, damaged []Damaged, err error) {
	var i Inspection
	err = tx.each([]byte{keyCheckpoint}, nil, func(key, v []byte) error { i.add(key, v); return nil })
	return i.Checkpoints, i.Damaged, err
}

// each calls fn for every key that has the prefix, from start on if that is not nil. fn must keep neither slice.
func (tx *Tx) each(prefix, start []byte, fn func(key, value []byte) error) error {
	return tx.eachUntil(prefix, start, func(k, v []byte) (bool, error) { return false, fn(k, v) })
}

// eachUntil is each, until fn says that it is done.
func (tx *Tx) eachUntil(prefix, start []byte, fn func(key, value []byte) (done bool, err error)) error {
	if tx.err != nil || tx.update {
		return cmp.Or(tx.err, errRange)
	}
	it := tx.db().NewIterator(badger.IteratorOptions{Prefix: prefix, PrefetchValues: true, PrefetchSize: 64})
	defer it.Close()
	if start == nil {
		start = prefix
	}
	for it.Seek(start); it.ValidForPrefix(prefix); it.Next() {
		item := it.Item()
		var done bool
		err := item.Value(func(v []byte) (err error) { done, err = fn(item.Key(), v); return err })
		if err != nil || done {
			return err
		}
	}
	return nil
}

// eachSize is each, with the size of the value instead of the value.
func (tx *Tx) eachSize(prefix []byte, fn func(key []byte, size int64) error) error {
	if tx.err != nil || tx.update {
		return cmp.Or(tx.err, errRange)
	}
	it := tx.db().NewIterator(badger.IteratorOptions{Prefix: prefix})
	defer it.Close()
	for it.Seek(prefix); it.ValidForPrefix(prefix); it.Next() {
		if err := fn(it.Item().Key(), it.Item().ValueSize()); err != nil {
			return err
		}
	}
	return nil
}

// countFrom counts the records of a kind in from ≤ epoch < to, up to max; to 0 means without end.
func (tx *Tx) countFrom(kind byte, from, to Epoch, max int) (int, error) {
	if tx.err != nil || tx.update {
		return 0, cmp.Or(tx.err, errRange)
	}
	n := 0
	it := tx.db().NewIterator(badger.IteratorOptions{Prefix: []byte{kind}})
	defer it.Close()
	for it.Seek(epochKey(kind, from)); it.ValidForPrefix([]byte{kind}) && n < max; it.Next() {
		if to != 0 && keyEpoch(it.Item().Key()) >= to {
			break
		}
		n++
	}
	return n, nil
}

func metaKey(name string) []byte { return append([]byte{keyMeta}, name...) }

// PutMeta stores a small value under a name.
func (tx *Tx) PutMeta(name string, v []byte) error { return tx.Set(metaKey(name), v) }

// DeleteMeta removes it.
func (tx *Tx) DeleteMeta(name string) error { return tx.delete(metaKey(name)) }

// Meta gives it; nil where there is none.
func (tx *Tx) Meta(name string) (v []byte, err error) {
	_, err = tx.get(metaKey(name), func(b []byte) error { v = append([]byte{}, b...); return nil })
	return v, err
}

// PutNumber and Number store counters.
func (tx *Tx) PutNumber(name string, v uint64) error {
	return tx.PutMeta(name, binary.BigEndian.AppendUint64(nil, v))
}

// Number gives a counter; 0 where there is none.
func (tx *Tx) Number(name string) (uint64, error) {
	b, err := tx.Meta(name)
	if err != nil || b == nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, errs.New(errs.Integrity, "read store", name, "a counter has %d bytes", len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}

// PutAlias notes that a directory was made anew in an epoch: records that name old mean the new one.
func (s *Store) PutAlias(old, new ID, e Epoch) error {
	v := binary.BigEndian.AppendUint64(appendID(nil, new), uint64(e))
	if err := s.Update(func(tx *Tx) error { return tx.Set(idKey(keyAlias, old), v) }); err != nil {
		return err
	}
	s.aliasMu.Lock()
	s.aliases[old], s.remade[new] = new, remade{old, e}
	s.aliasMu.Unlock()
	s.pasts.distrust(errRenamed)
	return nil
}

var errRenamed = errors.New("inodes have other identities now")

// Resolve follows aliases.
func (s *Store) Resolve(id ID) ID {
	s.aliasMu.RLock()
	defer s.aliasMu.RUnlock()
	for range len(s.aliases) {
		next, ok := s.aliases[id]
		if !ok {
			break
		}
		id = next
	}
	return id
}

// Before gives the identity that an inode had at the beginning of an epoch, if it was there then.
func (s *Store) Before(id ID, e Epoch) ID {
	s.aliasMu.RLock()
	defer s.aliasMu.RUnlock()
	for range len(s.remade) {
		was, ok := s.remade[id]
		if !ok || was.epoch < e {
			break
		}
		id = was.old
	}
	return id
}

func (s *Store) loadAliases() error {
	s.aliases, s.remade = map[ID]ID{}, map[ID]remade{}
	return s.View(func(tx *Tx) error {
		return tx.each([]byte{keyAlias}, nil, func(key, v []byte) error {
			if len(key) != 1+idLen || len(v) != idLen && len(v) != idLen+8 {
				return errs.New(errs.Integrity, "read store", "", "an alias record is corrupt")
			}
			old, now := decodeID(key[1:]), decodeID(v)
			s.aliases[old] = now
			if len(v) > idLen { // else it is older than all pins
				s.remade[now] = remade{old, Epoch(binary.BigEndian.Uint64(v[idLen:]))}
			}
			return nil
		})
	})
}

// Bytes gives the room that the database and the blobs of turns take on disk. Badger's own figure is a minute old, and counts what its sparse
// files could hold.
func (s *Store) Bytes() int64 {
	var total int64
	for _, dir := range []string{filepath.Join(s.dir, "db"), s.turns.dir} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			total += allocated(filepath.Join(dir, e.Name()))
		}
	}
	return total
}

// badgerLogger sends what Badger says to slog. Its information lines are of no interest to a user.
type badgerLogger struct{ l *slog.Logger }

func (b badgerLogger) log(level slog.Level, format string, args []any) {
	if b.l != nil {
		b.l.Log(context.Background(), level, strings.TrimSpace(fmt.Sprintf(format, args...)), "from", "badger")
	}
}

func (b badgerLogger) Errorf(f string, a ...any)   { b.log(slog.LevelError, f, a) }
func (b badgerLogger) Warningf(f string, a ...any) { b.log(slog.LevelWarn, f, a) }
func (b badgerLogger) Infof(f string, a ...any)    { b.log(slog.LevelDebug, f, a) }
func (b badgerLogger) Debugf(string, ...any)       {}
