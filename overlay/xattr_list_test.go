//go:build linux

package overlay

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestXattrsThatCantBeListedAreNotTakenForNone(t *testing.T) {
	get := func(string, []byte) (int, error) { return 0, unix.ENODATA }
	for _, c := range []struct{ fails, want error }{
		{unix.EIO, unix.EIO},
		{unix.EACCES, unix.EACCES},
		{unix.EOPNOTSUPP, nil}, // the filesystem has none
		{nil, nil},
	} {
		list := func([]byte) (int, error) {
			if c.fails != nil {
				return -1, c.fails
			}
			return 0, nil
		}
		if xs, err := xattrsBy(list, get); err != c.want || len(xs) > 0 {
			t.Errorf("where listing fails with %v: %v, %v, want %v", c.fails, xs, err, c.want)
		}
	}
}
