package strategy

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSummingWhatIsNotThereFails(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "segment"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(64 << 10); err != nil {
		t.Fatal(err)
	}
	p, err := unix.Mmap(int(f.Fd()), 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(p) }()
	copy(p, "something")
	if sum, zeros, err := sumMapped(p[:9]); err != nil || zeros || sum != sumBytes([]byte("something")) {
		t.Errorf("it gives %x, %v, %v", sum, zeros, err)
	}
	if err := f.Truncate(8 << 10); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{9000, 64 << 10} {
		if _, _, err := sumMapped(p[:size]); err == nil {
			t.Errorf("%d bytes of a file that was cut have a checksum", size)
		}
	}
}
