package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
)

// checkTables proves that the tables of the database in dir are all there, and as they were written. Badger itself goes on without a table whose checksum
// is wrong, removes those that a manifest which is missing does not name, and panics at one that makes no sense. It changes nothing.
func checkTables(dir string) error {
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if errors.Is(err, fs.ErrNotExist) {
		return noTables(dir)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	manifest, _, err := badger.ReplayManifestFile(f, 0, badger.DefaultOptions(dir))
	if err != nil {
		return fmt.Errorf("%s: %w", badger.ManifestFilename, err)
	}
	for id := range manifest.Tables {
		t, err := readTable(table.NewFilename(id, dir), id)
		if err != nil {
			return fmt.Errorf("%s: %w", table.IDToFilename(id), err)
		}
		_ = t.DecrRef()
	}
	return nil
}

// noTables fails where a database without a manifest has anything else.
func noTables(dir string) error {
	for _, pattern := range []string{"*.sst", "*.mem"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(names) > 0 {
			return errors.Join(err, fmt.Errorf("%s is missing", badger.ManifestFilename))
		}
	}
	return nil
}

// readTable reads a table and proves its checksums. Whoever calls it gives the table back with DecrRef.
func readTable(name string, id uint64) (t *table.Table, err error) {
	defer func() {
		if r := recover(); r != nil { // what is damaged in its index makes Badger panic
			t, err = nil, errors.New("it is damaged")
		}
	}()
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if t, err = table.OpenInMemoryTable(b, id, &table.Options{Compression: options.None}); err != nil {
		return nil, err
	}
	return t, t.VerifyChecksum()
}
