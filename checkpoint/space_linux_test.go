package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/internal/testfs"
)

// Badger writes to mapped files: without room for them, that would be the end of the test too.
func TestADiskThatFillsUpAfterTheCheckDoesNotEndTheProcess(t *testing.T) {
	dir := testfs.Tmpfs(t, 48<<20)
	s := reopened(t, dir)
	s.pending.flush.Lock() // keeps others from giving it
	for i := range 300 {
		put(t, s, fmt.Sprint("a", i), strings.Repeat("x", 300))
	}
	set := s.pending.turn()
	filler := filepath.Join(dir, "filler")
	filling := os.WriteFile(filler, make([]byte, 64<<20), 0o600)
	giving := s.pending.give(set, true)
	s.pending.flush.Unlock()
	if !errors.Is(filling, syscall.ENOSPC) || !errors.Is(giving, syscall.ENOSPC) {
		t.Fatalf("filling the disk says %v, giving the database something then %v", filling, giving)
	}
	removeFile(t, filler)
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	if got := meta(t, s, "a299"); len(got) != 300 {
		t.Errorf("%d bytes of what was committed", len(got))
	}
}
