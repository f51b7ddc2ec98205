package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// Inspection is what can be read of a store that is not opened.
type Inspection struct {
	Checkpoints []Checkpoint // of main and of branches, by ID
	Damaged     []Damaged    // records that can't be read
	Owner       string       // what PutMeta has of the name that was asked for
	Err         error        // why nobody can open the store; then there may be more checkpoints than these, or some of them may have been later forgotten
}

// Damaged is a checkpoint whose record can't be read.
type Damaged struct {
	ID  string
	Err error
}

// Inspect reads the checkpoints of the store in dir, also where it can't be opened: it opens a copy of the database, as Badger itself can't read one that a killed process has left
// without changing it. Nothing in dir is written to. owner is the name of a value that is to be read too. What it gives as an error is about the copy.
func Inspect(dir, owner string) (i Inspection, err error) {
	unlock, busy := lockToRead(dir)
	defer unlock()
	tmp, err := os.MkdirTemp("", "hyperfs-recover-")
	if err != nil {
		return i, errs.Wrap(errs.Internal, "recover", dir, err)
	}
	defer os.RemoveAll(tmp)
	if err := copyStore(dir, tmp); err != nil {
		return i, errs.Wrap(errs.Internal, "recover", dir, err)
	}
	if i.Err = i.open(tmp, owner); i.Err != nil {
		i.salvage(tmp)
	}
	if busy != nil {
		i.Err = busy
	}
	slices.SortFunc(i.Checkpoints, func(a, b Checkpoint) int { return strings.Compare(a.ID, b.ID) })
	return i, nil
}

// InUse says who has the store in dir open, as a BUSY error, or nil.
func InUse(dir string) error {
	unlock, busy := lockToRead(dir)
	unlock()
	return busy
}

// open reads a store that can be opened.
func (i *Inspection) open(dir, owner string) error {
	if _, err := os.Stat(filepath.Join(dir, "db")); errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.Integrity, "open store", "", "its database is missing")
	}
	backend, err := BackendOf(dir)
	if err != nil {
		return err
	}
	s, err := Open(dir, Options{Backend: backend})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.View(func(tx *Tx) error {
		b, err := tx.Meta(owner)
		if err != nil {
			return err
		}
		i.Owner = string(b)
		for _, kind := range []byte{keyCheckpoint, keyBranchCheckpoint} {
			if err := tx.each([]byte{kind}, nil, func(key, v []byte) error { i.add(key, v); return nil }); err != nil {
				return err
			}
		}
		return nil
	})
}

// add takes the record of a checkpoint.
func (i *Inspection) add(key, v []byte) {
	c, err := decodeCheckpoint(key, v)
	if err != nil {
		i.Damaged = append(i.Damaged, Damaged{string(key[1:]), err})
		return
	}
	i.Checkpoints = append(i.Checkpoints, c)
}

// decodeCheckpoint reads the record of a checkpoint of main, or of a branch.
func decodeCheckpoint(key, v []byte) (c Checkpoint, err error) {
	if err = json.Unmarshal(v, &c); err == nil && c.ID != string(key[1:]) {
		err = errors.New("it is of another checkpoint")
	}
	return c, err
}

// salvage reads the checkpoints of a store that can't be opened: from each table that is whole, from the logs, and from the journals.
func (i *Inspection) salvage(dir string) {
	newest := map[string]write{}
	versions := map[string]uint64{}
	see := func(key, v []byte, version uint64, deleted bool) {
		if isCheckpointKey(key) && version >= versions[string(key)] {
			newest[string(key)] = write{slices.Clone(key), slices.Clone(v), deleted}
			versions[string(key)] = version
		}
	}
	db := filepath.Join(dir, "db")
	eachInTables(db, see)
	eachInLogs(db, see)
	for k := range 2 {
		for _, w := range journalWrites(dir, k) {
			see(w.key, w.value, 1<<63, w.deleted)
		}
	}
	for _, w := range newest {
		if !w.deleted {
			i.add(w.key, w.value)
		}
	}
}

func isCheckpointKey(key []byte) bool {
	return len(key) > 1 && (key[0] == keyCheckpoint || key[0] == keyBranchCheckpoint)
}

// eachInTables calls fn for what the tables of a database have that are whole.
func eachInTables(dir string, fn func(key, v []byte, version uint64, deleted bool)) {
	names, _ := filepath.Glob(filepath.Join(dir, "*.sst"))
	for _, name := range names {
		id, _ := table.ParseFileID(name)
		t, err := readTable(name, id)
		if err != nil {
			continue
		}
		it := t.NewIterator(0)
		for it.Rewind(); it.Valid(); it.Next() {
			const bitDelete = 1 // of Badger's records
			v := it.Value()
			fn(y.ParseKey(it.Key()), v.Value, y.ParseTs(it.Key()), v.Meta&bitDelete != 0)
		}
		_ = it.Close()
		_ = t.DecrRef()
	}
}

// eachInLogs calls fn for what the logs of a database have, which it makes a database of its own. It uses up both.
func eachInLogs(dir string, fn func(key, v []byte, version uint64, deleted bool)) {
	names, _ := filepath.Glob(filepath.Join(dir, "*.sst"))
	for _, name := range append(names, filepath.Join(dir, badger.ManifestFilename)) {
		_ = os.Remove(name)
	}
	db, err := badger.Open(badgerOptions(dir, Options{}))
	if err != nil {
		return
	}
	defer db.Close()
	_ = db.View(func(t *badger.Txn) error {
		it := t.NewIterator(badger.IteratorOptions{AllVersions: true})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			item := it.Item()
			_ = item.Value(func(v []byte) error {
				fn(item.Key(), v, item.Version(), item.IsDeletedOrExpired())
				return nil
			})
		}
		return nil
	})
}

// journalWrites gives what can be read of a journal.
func journalWrites(dir string, i int) []write {
	j, err := openJournal(dir, i)
	if err != nil {
		return nil
	}
	defer j.f.Close()
	writes, _, _ := j.read()
	return writes
}

// copyStore copies what a store keeps its records in.
func copyStore(from, to string) error {
	for _, name := range []string{"format", backendName, journalName(0), journalName(1)} {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	entries, err := os.ReadDir(filepath.Join(from, "db"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(to, "db"), 0o700)
	}
	for _, e := range entries {
		if err == nil && e.Type().IsRegular() && e.Name() != "LOCK" {
			err = copyFile(filepath.Join(from, "db", e.Name()), filepath.Join(to, "db", e.Name()))
		}
	}
	return err
}

// copyUnit is how much is read at once, in bytes.
const copyUnit = 64 << 10

// copyFile copies a file without its zeros: the logs of a database are mostly these.
func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	buf, zeros, at := make([]byte, copyUnit), make([]byte, copyUnit), int64(0)
	for {
		n, err := io.ReadFull(src, buf)
		if n > 0 && !bytes.Equal(buf[:n], zeros[:n]) {
			if _, err := dst.WriteAt(buf[:n], at); err != nil {
				return errors.Join(err, dst.Close())
			}
		}
		at += int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return errors.Join(dst.Truncate(at), dst.Close())
		}
		if err != nil {
			return errors.Join(err, dst.Close())
		}
	}
}
