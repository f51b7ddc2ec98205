package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/testfs"
)

func TestWhatWasKeptIsThereAfterAKill(t *testing.T) {
	dir := t.TempDir()
	of := openTurns(t, dir, Options{})
	notGiven(t, of.s)
	small, large := someBytes(100), someBytes(smallMax+1)
	names := keep(t, of, small, large)
	copied := killed(t, dir)
	after := openTurns(t, copied, Options{})
	readable(t, after, names, small, large)
	sweep(t, after, 2) // as no record names them
}

func TestAFullDiskKeepsNothingHalf(t *testing.T) {
	for what, size := range map[string]int{"a large blob": 40 << 20, "small blobs": smallMax} {
		t.Run(what, func(t *testing.T) {
			dir := testfs.Tmpfs(t, 64<<20)
			of := openTurns(t, dir, Options{})
			small, large := someBytes(100), someBytes(smallMax+1)
			names := keep(t, of, small, large)
			record(t, of, "turn", names)
			if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 20<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			var err error
			for n := 0; err == nil && n < 1000; n++ {
				b := make([]byte, size)
				b[n%size], b[n/256] = byte(n), 1
				_, err = of.Keep(b)
			}
			if errs.CodeOf(err) != errs.Capacity || !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("Keep on a full disk: %v", err)
			}
			readable(t, of, names, small, large)
			if _, err := os.Stat(filepath.Join(of.dir, tempBlob)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("half of it was left: %v", err)
			}
			removeFile(t, filepath.Join(dir, "filler"))
			if list := problems(t, of); len(list) > 0 {
				t.Errorf("problems: %q", list)
			}
			more := keep(t, of, someBytes(smallMax+2))
			readable(t, of, more, someBytes(smallMax+2))
		})
	}
}
