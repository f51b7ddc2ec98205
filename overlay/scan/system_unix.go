//go:build unix

package scan

import (
	"errors"
	"os"
)

// tick gives what the filesystem says of f after a change made now.
func tick(f *os.File) (stat, error) {
	if _, err := f.WriteAt([]byte{0}, 0); err != nil {
		return stat{}, err
	}
	return statFile(f)
}

// syncDirectory makes names last over a loss of power.
func syncDirectory(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
