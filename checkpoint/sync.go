package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Sync has the disk take everything that was committed before the call, which is of use where Options.Sync is not set. Commits go
// on meanwhile.
//
// What was committed is in Badger's logs (.mem), which are mapped files, and in the tables made from these, which Badger syncs
// itself before it removes a log. So a log that has just been removed needs nothing.
func (s *Store) Sync() error {
	logs, err := filepath.Glob(filepath.Join(s.dir, "db", "*.mem"))
	for _, name := range logs {
		err = errors.Join(err, syncFile(name))
	}
	return err
}

func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0) // FlushFileBuffers of Windows wants to be able to write
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
