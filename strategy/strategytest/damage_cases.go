package strategytest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/strategy"
)

var damageCases = []testCase{
	{"Damage is found by whatever uses the preimage", damageIsFound},
	{"Damage that keeps size and mtime is found by the checksum", quietDamageIsFound},
	{"Restore of a preimage with another size leaves the file alone", restoreDamaged},
	{"Materialize of a damaged preimage leaves nothing", materializeDamaged},
}

// damage is one way to spoil a preimage, and what is said of it.
type damage struct {
	name string
	do   func(path string, off int64) error // off is where the preimage begins
	want error
	open bool // Open finds it too
	own  bool // it's damage only where the preimage has a file of its own
}

var damages = []damage{
	{"removed", func(p string, _ int64) error { return os.Remove(p) }, strategy.ErrMissing, true, false},
	{"truncated", func(p string, off int64) error { return os.Truncate(p, off+99) }, strategy.ErrCorrupt, true, false},
	{"emptied", func(p string, _ int64) error { return os.Truncate(p, 0) }, strategy.ErrCorrupt, true, false},
	{"extended", func(p string, _ int64) error { return os.Truncate(p, 1<<30) }, strategy.ErrCorrupt, true, true},
	{"changed in one bit", flip, strategy.ErrCorrupt, false, false},
	{"replaced by a directory", replace(func(p string) error { return os.Mkdir(p, 0o755) }), strategy.ErrCorrupt, true, true},
	{"replaced by a symlink to the same bytes", replaceBySymlink, strategy.ErrCorrupt, true, true},
}

func flip(path string, off int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	p := []byte{0}
	if _, err := f.ReadAt(p, off+50); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{p[0] ^ 4}, off+50)
	return err
}

func replace(with func(path string) error) func(path string, _ int64) error {
	return func(path string, _ int64) error { return errors.Join(os.Remove(path), with(path)) }
}

func replaceBySymlink(path string, _ int64) error {
	if err := errors.Join(os.Rename(path, path+".moved"), os.Symlink(path+".moved", path)); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err != nil { // Wine says that it has made it
		return errors.ErrUnsupported
	}
	return nil
}

func damageIsFound(b *bench) {
	for size, c := range map[string]content{"small": dense(5000), "large": dense(2*mib + 1)} {
		for _, d := range damages {
			b.Run(size+" "+d.name, func(t *testing.T) {
				b := b.anew(t)
				ref := b.saved(c)
				path, off := b.place(ref)
				if d.own && b.isPacked(path) {
					return
				}
				if err := d.do(path, off); errors.Is(err, errors.ErrUnsupported) {
					b.Skip("this system makes no symlinks")
				} else {
					b.must(err)
				}
				b.refuses(ref, d)
			})
		}
	}
}

// isPacked reports whether a file has more than one preimage.
func (b *bench) isPacked(path string) bool {
	return b.kept.Place != nil && filepath.Dir(path) == b.kept.Dir
}

// refuses checks that each call finds the damage.
func (b *bench) refuses(ref strategy.Ref, d damage) {
	b.Helper()
	check := func(call string, err error) {
		b.Helper()
		if !errors.Is(err, d.want) {
			b.Errorf("%s says %v", call, err)
		}
	}
	check("Verify", b.s.Verify(ref))
	check("Restore", b.s.Restore(ref, b.file("dst", dense(3))))
	check("Materialize", b.materialize(ref, "made", false))
	if !ref.HasSum {
		_, err := b.s.Sum(ref)
		check("Sum", err)
	}
	f, err := b.s.Open(ref)
	if err == nil {
		_ = f.Close()
	}
	if d.open {
		check("Open", err)
	}
}

func quietDamageIsFound(b *bench) {
	for size, c := range map[string]content{"small": dense(5000), "large": dense(2*mib + 1)} {
		b.Run(size, func(t *testing.T) {
			b := b.within(t)
			ref, err := b.s.Sum(b.saved(c))
			b.must(err)
			b.must(b.s.Verify(ref))
			path, off := b.place(ref)
			info, err := os.Stat(path)
			b.must(err)
			b.must(flip(path, off))
			b.must(os.Chtimes(path, info.ModTime(), info.ModTime()))
			b.refuses(ref, damage{want: strategy.ErrCorrupt})
			b.must(b.s.Remove(ref))
		})
	}
}

func restoreDamaged(b *bench) {
	ref := b.saved(dense(2 * mib))
	path, off := b.place(ref)
	b.must(os.Truncate(path, off+mib))
	there := dense(12345)
	dst := b.file("dst", there)
	if err := b.s.Restore(ref, dst); !errors.Is(err, strategy.ErrCorrupt) {
		b.Errorf("Restore says %v", err)
	}
	b.fileHolds(dst, there)
}

func materializeDamaged(b *bench) {
	ref, err := b.s.Sum(b.saved(dense(2 * mib)))
	b.must(err)
	b.must(flip(b.place(ref)))
	if err := b.materialize(ref, "made", false); !errors.Is(err, strategy.ErrCorrupt) {
		b.Errorf("Materialize says %v", err)
	}
	if _, err := os.Lstat(b.path("made")); !errors.Is(err, os.ErrNotExist) {
		b.Errorf("a file was left (%v)", err)
	}
}
