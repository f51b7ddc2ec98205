package uring

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

func TestCPUsAreCounted(t *testing.T) {
	for text, want := range map[string]int{"0\n": 1, "0-1\n": 2, "0-3,8": 9, "0,2-127\n": 128, "": 0, "none": 0} {
		n, err := countCPUs(text)
		if n != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

// prepared makes a pool. A test is skipped where the kernel has no FUSE over io_uring or has it switched off, which `make uring` does not allow.
func prepared(t *testing.T) *Pool {
	t.Helper()
	if why := Enabled(); why != "" {
		if os.Getenv("HYPERFS_TEST_URING") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	p, err := Prepare(1<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAConnectionThatIsNoneIsRefused(t *testing.T) {
	p := prepared(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = p.Begin(int(f.Fd()), func(in, out [][]byte) (int, fuse.Status) { return 0, fuse.ENOSYS }, func() {})
	if err == nil {
		t.Error("it is taken")
	}
	p.Wait()
	if n := p.Workers(); n != 0 {
		t.Errorf("%d workers are left", n)
	}
}

func TestAPoolThatDoesNotBeginLeavesNothing(t *testing.T) {
	p := prepared(t)
	if n, queues := p.Workers(), len(p.queues); n != atFirst*queues {
		t.Errorf("%d workers for %d queues", n, queues)
	}
	p.Close()
	if n := p.Workers(); n != 0 {
		t.Errorf("%d workers are left", n)
	}
}
