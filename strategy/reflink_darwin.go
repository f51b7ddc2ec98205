package strategy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// cloneNoOwnerCopy is CLONE_NOOWNERCOPY of clonefile(2): the clone belongs to whoever makes it.
const cloneNoOwnerCopy = 0x0002

// clone can't be had on a file that is there: APFS makes a new one, see cloneIn.
func clone(file, file) error {
	return fmt.Errorf("clone into a file on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// cannotClone says whether err leaves hope that copying works.
func cannotClone(err error) bool {
	for _, no := range []error{errors.ErrUnsupported, unix.ENOTSUP, unix.EXDEV, unix.EINVAL, unix.ENOENT, unix.EPERM, unix.EACCES} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// cloneIn makes a new file in d that shares the blocks of src. A clone has the mode of its original, by which its owner could be
// kept from reading it, so it gets another.
func cloneIn(d dir, name string, src file) error {
	if err := unix.Fclonefileat(src.fd, d.fd, name, cloneNoOwnerCopy); err != nil {
		return os.NewSyscallError("fclonefileat", err)
	}
	if err := unix.Fchmodat(d.fd, name, 0o600, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return removeAfter(os.NewSyscallError("fchmodat", err), d, name)
	}
	return nil
}

// Save is Strategy.Save. The checksum is left to Sum, unless the file had to be copied.
func (r reflink) Save(src *os.File, name string) (Ref, error) {
	defer runtime.KeepAlive(src)
	ref := Ref{Tier: Reflink, Name: name}
	st, err := r.saveClone(fileOf(src), name)
	if err != nil && !errors.Is(err, fs.ErrInvalid) && cannotClone(err) {
		st, err = r.create(name, func(dst file) (err error) {
			ref.Sum, err = copyWhole(dst, fileOf(src))
			ref.HasSum = err == nil
			return err
		})
	}
	if err != nil {
		return Ref{}, failed("save", name, err)
	}
	ref.Size, ref.Mtime = st.size, st.mtime
	return ref, nil
}

// saveClone makes the preimage name a clone of src.
func (r reflink) saveClone(src file, name string) (stat, error) {
	if err := checkName(name); err != nil {
		return stat{}, err
	}
	if err := cloneIn(r.dir, name, src); err != nil {
		return stat{}, err
	}
	f, err := r.dir.open(name)
	if err != nil {
		return stat{}, removeAfter(err, r.dir, name)
	}
	defer func() { _ = f.close() }()
	st, err := r.complete(f, func(file) error { return nil })
	if err == nil && r.synced {
		err = r.dir.sync()
	}
	if err != nil {
		return stat{}, removeAfter(err, r.dir, name)
	}
	return st, nil
}

// Materialize is Strategy.Materialize.
func (r reflink) Materialize(ref Ref, dirfd int, name string, share bool) error {
	err := r.materializeClone(ref, dirfd, name, share)
	if err != nil && !errors.Is(err, fs.ErrInvalid) && cannotClone(err) {
		err = r.materialize(ref, dirfd, name, share, r.openIntact, fillCopy)
	}
	return failed("materialize", ref.Name, err)
}

// materializeClone makes a new file that is a clone of the preimage, where that need not be shared.
func (r reflink) materializeClone(ref Ref, dirfd int, name string, share bool) error {
	if share {
		return errors.ErrUnsupported
	}
	if err := errors.Join(r.checkRef(ref), checkEntry(name)); err != nil {
		return err
	}
	f, err := r.openIntact(ref)
	if err != nil {
		return err
	}
	defer func() { _ = f.close() }()
	return cloneIn(dir{file{dirfd}}, name, f)
}

// tryClone clones a file, overwrites the original and looks what the clone holds.
func tryClone(s site) (err error) {
	d := s.dir
	for _, name := range []string{trialSrc, trialDst} {
		_ = d.remove(name)
	}
	src, err := d.create(trialSrc)
	if err != nil {
		return fmt.Errorf("create a file: %w", err)
	}
	defer func() { err = firstError(err, src.close(), d.remove(trialSrc)) }()
	was := bytes.Repeat([]byte("preimage"), blockSize/4+1)
	if err := src.writeAt(was, 0); err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	if err := cloneIn(d, trialDst, src); err != nil {
		return err
	}
	defer func() { err = firstError(err, d.remove(trialDst)) }()
	if err := src.writeAt(bytes.ToUpper(was), 0); err != nil {
		return fmt.Errorf("overwrite the original: %w", err)
	}
	kept, err := d.open(trialDst)
	if err != nil {
		return fmt.Errorf("open the clone: %w", err)
	}
	defer func() { _ = kept.close() }()
	got := make([]byte, len(was)+1)
	n, err := kept.readAt(got, 0)
	if err == nil && !bytes.Equal(got[:n], was) {
		err = errors.New("the clone has other bytes than the file had")
	}
	return err
}
