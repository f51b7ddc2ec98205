package scan

import (
	"errors"
	"os"
)

// openBlocks says that a program which has a file open can keep others from removing it.
const openBlocks = true

// mayFoldCase says that names that differ in case alone may be one name.
const mayFoldCase = true

// linksNeedRights says that not everybody can make symlinks.
const linksNeedRights = true

// tick gives what the filesystem says of a file that is made now, beside f: one that stays open gets its new times late.
func tick(f *os.File) (stat, error) {
	name := f.Name() + tempSuffix
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return stat{}, err
	}
	fresh, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return stat{}, err
	}
	st, err := statFile(fresh)
	return st, errors.Join(err, fresh.Close(), os.Remove(name))
}
