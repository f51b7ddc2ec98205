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

func TestANumberOfXattrsThatAreNotListedIsNone(t *testing.T) {
	list := func(b []byte) (int, error) {
		if b == nil {
			return len("trusted.overlay.opaque") + 1, nil // as overlayfs does
		}
		return 0, nil
	}
	get := func(name string, _ []byte) (int, error) {
		t.Errorf("%q was asked for", name)
		return 0, unix.ERANGE
	}
	if xs, err := xattrsBy(list, get); err != nil || len(xs) > 0 {
		t.Error(xs, err)
	}
}
