package strategy

import (
	"os"
	"runtime"
)

// manifest is the tier pure-manifest: it copies the bytes. It works on every filesystem. Tiers that copy too, but to
// somewhere else or not always, are built on it.
type manifest struct {
	preimages
	kind Kind
}

func openManifest(s site) (Strategy, error) { return manifest{s.preimages(), PureManifest}, nil }

// Kind is Strategy.Kind.
func (m manifest) Kind() Kind { return m.kind }

// Save is Strategy.Save.
func (m manifest) Save(src *os.File, name string) (Ref, error) {
	defer runtime.KeepAlive(src)
	ref := Ref{Tier: m.kind, Name: name, HasSum: true}
	st, err := m.create(name, func(dst file) (err error) {
		ref.Sum, err = copyWhole(dst, fileOf(src))
		return err
	})
	if err != nil {
		return Ref{}, failed("save", name, err)
	}
	ref.Size, ref.Mtime = st.size, st.mtime
	return ref, nil
}

// copyWhole copies what src holds now into dst, which is empty.
func copyWhole(dst, src file) (sum uint64, err error) {
	st, err := src.stat()
	if err != nil {
		return 0, err
	}
	return copyNew(dst, source{file: src}, st.size)
}

// Restore is Strategy.Restore.
func (m manifest) Restore(ref Ref, dst *os.File) error {
	defer runtime.KeepAlive(dst)
	f, err := m.openChecked(ref)
	if err != nil {
		return failed("restore", ref.Name, err)
	}
	defer func() { _ = f.close() }()
	sum, err := copyOver(fileOf(dst), source{f, true}, ref.Size)
	if err == nil {
		err = sameSum(ref, sum)
	}
	return failed("restore", ref.Name, err)
}

// openChecked opens a preimage that is about to be copied. The checksum of a large one is left to the copying.
func (m manifest) openChecked(ref Ref) (file, error) {
	if !ref.HasSum || ref.Size <= smallSize {
		return m.openIntact(ref)
	}
	f, _, err := m.open(ref)
	return f, err
}

// Materialize is Strategy.Materialize.
func (m manifest) Materialize(ref Ref, dirfd int, name string, share bool) error {
	return failed("materialize", ref.Name, m.materialize(ref, dirfd, name, share, m.openChecked, fillCopy))
}

// fillCopy copies the preimage f into dst, which is empty.
func fillCopy(ref Ref, dst, f file) error {
	sum, err := copyNew(dst, source{f, true}, ref.Size)
	if err != nil {
		return err
	}
	return sameSum(ref, sum)
}
