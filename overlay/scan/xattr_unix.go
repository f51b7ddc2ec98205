//go:build unix

package scan

import (
	"bytes"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

func readXattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) ([]checkpoint.Xattr, error) {
	names, err := growing(list)
	if err == unix.EOPNOTSUPP || err == nil && len(names) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var xs []checkpoint.Xattr
	for _, name := range bytes.Split(bytes.TrimSuffix(names, []byte{0}), []byte{0}) {
		v, err := growing(func(b []byte) (int, error) { return get(string(name), b) })
		if err == noXattr {
			continue
		}
		if err != nil {
			return nil, err
		}
		xs = append(xs, checkpoint.Xattr{Name: string(name), Value: v})
	}
	slices.SortFunc(xs, func(a, b checkpoint.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return xs, nil
}

// growing calls a function of the xattr family with a buffer that is large enough.
func growing(fn func([]byte) (int, error)) ([]byte, error) {
	var small [256]byte
	n, err := fn(small[:])
	if err == nil {
		return append([]byte{}, small[:n]...), nil
	}
	for err == unix.ERANGE {
		if n, err = fn(nil); err != nil {
			return nil, err
		}
		buf := make([]byte, n+64)
		if n, err = fn(buf); err == nil {
			return buf[:n], nil
		}
	}
	return nil, err
}

// applyXattrs makes the extended attributes of an inode, which are now, equal to want.
func applyXattrs(now, want []checkpoint.Xattr, set func(name string, value []byte) error, remove func(name string) error) error {
	for _, x := range now {
		if findXattr(want, x.Name) == nil {
			if err := remove(x.Name); err != nil && err != noXattr {
				return err
			}
		}
	}
	for _, x := range want {
		if is := findXattr(now, x.Name); is != nil && bytes.Equal(is.Value, x.Value) {
			continue
		}
		if err := set(x.Name, x.Value); err != nil {
			return err
		}
	}
	return nil
}

func findXattr(xs []checkpoint.Xattr, name string) *checkpoint.Xattr {
	for i := range xs {
		if xs[i].Name == name {
			return &xs[i]
		}
	}
	return nil
}
