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

// Save is Strategy.Save. The checksum is left to Sum, unless the file had to be copied.
func (r reflink) Save(src *os.File, name string) (Ref, error) {
	return r.save(src, name, func(dst file, ref *Ref) (err error) {
		ref.Sum, err = copyWhole(dst, fileOf(src))
		ref.HasSum = err == nil
		return err
	})
}

// Clone is Cloner.Clone.
func (r reflink) Clone(src *os.File, name string) (Ref, error) {
	return r.save(src, name, func(file, *Ref) error { return ErrNoClone })
}

// save clones the file, or does something else with one that can't be cloned.
func (r reflink) save(src *os.File, name string, otherwise func(dst file, ref *Ref) error) (Ref, error) {
	defer runtime.KeepAlive(src)
	ref := Ref{Tier: Reflink, Name: name}
	st, err := r.create(name, func(dst file) error {
		err := clone(dst, fileOf(src))
		if cannotClone(err) {
			err = otherwise(dst, &ref)
		}
		return err
	})
	if err != nil {
		return Ref{}, failed("save", name, err)
	}
	ref.Size, ref.Mtime = st.size, st.mtime
	return ref, nil
}

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

// Materialize is Strategy.Materialize.
func (r reflink) Materialize(ref Ref, dirfd int, name string, share bool) error {
	return failed("materialize", ref.Name, r.materialize(ref, dirfd, name, share, r.openIntact, fillClone))
}

// fillClone makes dst, which is empty, a clone of the preimage f, or a copy.
func fillClone(ref Ref, dst, f file) error {
	err := clone(dst, f)
	if cannotClone(err) {
		return fillCopy(ref, dst, f)
	}
	return err
}
