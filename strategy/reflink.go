package strategy

import (
	"errors"
	"os"
	"runtime"
)

// reflink is the tier reflink: it shares the blocks of the original until either is written to. It reads no bytes.
//
// Single files can refuse that (on btrfs one without copy-on-write, an active swap file; anything on another filesystem mounted below
// the workspace). They are copied, as pure-manifest does it: one file is no reason to give up the tier.
type reflink struct{ preimages }

func openReflink(s site) (Strategy, error) { return reflink{s.preimages()}, nil }

// Kind is Strategy.Kind.
func (reflink) Kind() Kind { return Reflink }

// Cloner is a tier that keeps most files without copying them.
type Cloner interface {
	// Clone is Strategy.Save for a file that needs not be copied for that. For any other it is ErrNoClone.
	Clone(src *os.File, name string) (Ref, error)
}

// ErrNoClone says that a file would have to be copied.
var ErrNoClone = errors.New("the file can't be cloned")

// Restore is Strategy.Restore. It finds all damage before it changes dst.
func (r reflink) Restore(ref Ref, dst *os.File) error {
	defer runtime.KeepAlive(dst)
	f, err := r.openIntact(ref)
	if err != nil {
		return failed("restore", ref.Name, err)
	}
	defer func() { _ = f.close() }()
	err = cloneOver(fileOf(dst), f, ref.Size)
	if cannotClone(err) {
		_, err = copyOver(fileOf(dst), source{f, true}, ref.Size)
	}
	return failed("restore", ref.Name, err)
}

// cloneOver makes dst a clone of src, which has size bytes.
func cloneOver(dst, src file, size int64) error {
	st, err := dst.stat()
	if err != nil {
		return err
	}
	// A clone replaces the bytes from 0 to size and leaves what is behind.
	if st.size > size {
		if err := resize(dst, size); err != nil {
			return err
		}
	}
	return clone(dst, src)
}
