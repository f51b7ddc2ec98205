package strategy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// preimages is a flat directory that holds each preimage as a plain file under its name. It is what the tiers that
// keep whole files have in common.
type preimages struct {
	dir      dir
	synced   bool // see Options.Sync
	volatile bool // it is the directory of the volatile tiers
}

// create makes the preimage name, lets fill write it, and returns what became of it. On an error nothing is left.
func (p preimages) create(name string, fill func(dst file) error) (st stat, err error) {
	if err := checkName(name); err != nil {
		return stat{}, err
	}
	err = createIn(p.dir, name, func(dst file) (err error) {
		st, err = p.complete(dst, fill)
		return err
	})
	if err != nil {
		return stat{}, err
	}
	if p.synced {
		if err := p.dir.sync(); err != nil {
			return stat{}, removeAfter(os.NewSyscallError("fsync directory", err), p.dir, name)
		}
	}
	return st, nil
}

func (p preimages) complete(dst file, fill func(dst file) error) (stat, error) {
	if err := fill(dst); err != nil {
		return stat{}, err
	}
	if p.synced {
		if err := dst.sync(); err != nil {
			return stat{}, os.NewSyscallError("fsync", err)
		}
	}
	return dst.stat()
}

// createIn makes a new file in d and lets fill write it. On an error nothing is left.
func createIn(d dir, name string, fill func(dst file) error) error {
	dst, err := d.create(name)
	if err != nil {
		return err
	}
	err = fill(dst)
	// Some filesystems report a lack of space only here.
	if cerr := dst.close(); err == nil && cerr != nil {
		err = os.NewSyscallError("close", cerr)
	}
	if err != nil {
		return removeAfter(err, d, name)
	}
	return nil
}

// removeAfter removes the file that could not be completed because of err, and returns err.
func removeAfter(err error, d dir, name string) error {
	if rerr := d.remove(name); rerr != nil {
		return fmt.Errorf("%w; removing what was made: %w", err, rerr)
	}
	return err
}

// open opens the preimage and checks what costs nothing to check. The caller closes the file.
func (p preimages) open(ref Ref) (f file, st stat, err error) {
	if err := p.checkRef(ref); err != nil {
		return file{}, stat{}, err
	}
	f, err = p.dir.open(ref.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return file{}, stat{}, ErrMissing
	}
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a symlink, a socket
		return file{}, stat{}, fmt.Errorf("%w: not a regular file", ErrCorrupt)
	}
	if err != nil {
		return file{}, stat{}, err
	}
	st, err = f.stat()
	if err == nil {
		err = checkStat(ref, st)
	}
	if err != nil {
		_ = f.close()
		return file{}, stat{}, err
	}
	return f, st, nil
}

// openIntact is open that also proves what Verify proves: the checksum, or the mtime if there is none.
func (p preimages) openIntact(ref Ref) (file, error) {
	f, st, err := p.open(ref)
	if err != nil {
		return file{}, err
	}
	if ref.HasSum {
		err = checkSum(ref, f)
	} else {
		err = checkMtime(ref, st)
	}
	if err != nil {
		_ = f.close()
		return file{}, err
	}
	return f, nil
}

// materialize links the preimage if it may be shared and can be linked; else it makes a new file and lets fill write it.
func (p preimages) materialize(ref Ref, dirfd int, name string, share bool,
	open func(Ref) (file, error), fill func(ref Ref, dst, f file) error) error {
	if err := errors.Join(p.checkRef(ref), checkEntry(name)); err != nil {
		return err
	}
	to, done, err := dirOf(dirfd)
	if err != nil {
		return err
	}
	defer done()
	if share {
		// Whatever speaks against a link (another device, too many links, a filesystem without links), a copy may work.
		if err := p.dir.link(ref.Name, to, name); err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	f, err := open(ref)
	if err != nil {
		return err
	}
	defer func() { _ = f.close() }()
	return createIn(to, name, func(dst file) error { return fill(ref, dst, f) })
}

// Open is Strategy.Open.
func (p preimages) Open(ref Ref) (*os.File, error) {
	f, _, err := p.open(ref)
	if err != nil {
		return nil, failed("open", ref.Name, err)
	}
	return f.osFile(ref.Name), nil
}

// Verify is Strategy.Verify.
func (p preimages) Verify(ref Ref) error {
	f, err := p.openIntact(ref)
	if err != nil {
		return failed("verify", ref.Name, err)
	}
	_ = f.close()
	return nil
}

// Sum is Strategy.Sum. It trusts no bytes that were touched since they were saved.
func (p preimages) Sum(ref Ref) (Ref, error) {
	if ref.HasSum {
		return ref, nil
	}
	f, err := p.openIntact(ref)
	if err != nil {
		return ref, failed("sum", ref.Name, err)
	}
	defer func() { _ = f.close() }()
	sum, err := sumOf(source{f, true}, ref.Size)
	if err != nil {
		return ref, failed("sum", ref.Name, err)
	}
	ref.Sum, ref.HasSum = sum, true
	return ref, nil
}

// Remove is Strategy.Remove.
func (p preimages) Remove(ref Ref) error {
	err := p.checkRef(ref)
	if err == nil {
		err = p.dir.remove(ref.Name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return failed("remove", ref.Name, err)
}

// List is Strategy.List.
func (p preimages) List(fn func(name string, size int64) error) error {
	return p.dir.each(func(name string, st stat) error {
		if !st.regular || checkName(name) != nil {
			return nil
		}
		return fn(name, st.size)
	})
}

// Close is Strategy.Close.
func (p preimages) Close() error { return p.dir.close() }

// failed wraps err with what was being done to which preimage; nil stays nil.
func failed(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s preimage %q: %w", op, name, err)
}
