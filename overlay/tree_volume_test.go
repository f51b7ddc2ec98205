//go:build linux

package overlay_test

import (
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// volumeOf gives a new workspace's tree as a volume, with a file in it that is open for reading and writing.
func volumeOf(t *testing.T) (overlay.Volume, overlay.File) {
	t.Helper()
	w, err := overlay.Open(overlay.Config{Workspace: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	v := w.Tree().Volume()
	n, f, _, err := v.Create(v.Root(), "f", unix.O_RDWR, 0o644, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Release()
		v.Forget(n, 1)
	})
	return v, f
}

func TestAVolumeGivesNothingWithAnError(t *testing.T) {
	v, _ := volumeOf(t)
	root := v.Root()
	if n, _, err := v.Lookup(root, "none"); n != nil || err != unix.ENOENT {
		t.Error("lookup:", n, err)
	}
	if n, f, _, err := v.Create(root, "f", unix.O_RDWR, 0o644, false, nil); n != nil || f != nil || err != unix.EEXIST {
		t.Error("create:", n, f, err)
	}
	if f, err := v.Open(root, unix.O_RDONLY, false, nil); f != nil || err != unix.EISDIR {
		t.Error("open:", f, err)
	}
	if n, _, err := v.Mkdir(root, "f", 0o755, nil); n != nil || err != unix.EEXIST {
		t.Error("mkdir:", n, err)
	}
	d, _, err := v.Mkdir(root, "d", 0o755, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Forget(d, 1)
	if err := v.Rmdir(root, "d"); err != nil {
		t.Fatal(err)
	}
	if dir, err := v.OpenDir(d); dir != nil || err == nil {
		t.Error("open a directory that is gone:", dir, err)
	}
}

func TestAVolumeTakesNoFileForAttributes(t *testing.T) {
	v, f := volumeOf(t)
	if _, err := f.WriteAt([]byte("12345"), 0); err != nil {
		t.Fatal(err)
	}
	for _, open := range []overlay.File{nil, f} {
		a, err := v.GetAttr(f.Inode(), open)
		if err != nil || a.Size != 5 {
			t.Errorf("%d bytes, %v", a.Size, err)
		}
	}
}

func TestTwoNamesGiveOneInodeOfAVolume(t *testing.T) {
	v, f := volumeOf(t)
	if _, err := v.Link(f.Inode(), v.Root(), "g"); err != nil {
		t.Fatal(err)
	}
	n, _, err := v.Lookup(v.Root(), "g")
	if err != nil || n != f.Inode() {
		t.Fatal(n, err)
	}
	v.Forget(n, 1)
}

func TestNothingIsCopiedFromOneVolumeToAnother(t *testing.T) {
	_, from := volumeOf(t)
	_, to := volumeOf(t)
	if _, err := from.WriteAt([]byte("12345"), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := from.CopyFileRange(0, to, 0, 5, 0); n != 0 || err != unix.EXDEV {
		t.Fatal(n, err)
	}
	if n, err := from.CopyFileRange(0, from, 5, 5, 0); n != 5 || err != nil {
		t.Fatal(n, err)
	}
}
