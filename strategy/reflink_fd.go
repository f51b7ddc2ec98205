//go:build !darwin

package strategy

import (
	"os"
	"runtime"
)

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

// tryClone tries whether files can be cloned.
func tryClone(s site) error { return try(s.dir, clone) }
