package test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/test/ops"
)

// bytesBelow gives how much the files below a directory hold.
func bytesBelow(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		st, err := d.Info()
		n += st.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// bigFile makes a file of 1 GiB, every 16th MiB of which is data.
func bigFile(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for off := int64(0); off < 1<<30; off += 16 << 20 {
		if _, err := f.WriteAt(ops.Data(uint64(off), 1<<20), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
}

// TestOneBlockOfALargeFileCostsLittle changes 4 KiB of a file of 1 GiB, and counts what is kept of it.
func TestOneBlockOfALargeFileCostsLittle(t *testing.T) {
	t.Parallel()
	needMount(t)
	for _, tier := range []string{"pure-manifest", "posix-link", "tmpfs"} {
		t.Run(tier, func(t *testing.T) {
			dir := memory(t)
			ws, store, ram := filepath.Join(dir, "workspace"), filepath.Join(dir, "store"), filepath.Join(dir, "ram")
			if err := os.Mkdir(ws, 0o755); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(ws, "big")
			bigFile(t, name)
			sub := mountForTest(t, ws, mountOptions{big: true, flags: []string{"--tier", tier, "--tmpfs-dir", ram, "--store", store}})
			before := sparseState(t, name)
			id := mustSnapshot(t, sub)
			const at = 512<<20 + 4096
			overwriteFile(t, name, bytes.Repeat([]byte("C"), 4096), at)
			kept := bytesBelow(t, filepath.Join(store, "backup")) + bytesBelow(t, filepath.Join(store, "trash"))
			if _, err := os.Stat(ram); err == nil {
				kept += bytesBelow(t, ram)
			}
			if kept == 0 || kept > 1<<20 {
				t.Errorf("%d bytes are kept", kept)
			}
			mustRollback(t, sub, id)
			if diff := (treestate.Compare{Holes: true}).Diff(before, sparseState(t, name)); len(diff) > 0 {
				t.Error(diff)
			}
			wantBytes(t, name, ops.Data(512<<20, 1<<20), 512<<20)
			if _, err := sub.Undo(); err != nil {
				t.Fatal(err)
			}
			wantBytes(t, name, bytes.Repeat([]byte("C"), 4096), at)
			if err := sub.Check(true); err != nil {
				t.Error(err)
			}
		})
	}
}

func overwriteFile(t *testing.T, name string, p []byte, off int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(p, off); err != nil {
		t.Fatal(err)
	}
}

func wantBytes(t *testing.T, name string, want []byte, off int64) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, off); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the bytes at %d are not what they should be (%v)", off, err)
	}
}
