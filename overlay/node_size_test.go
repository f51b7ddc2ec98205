//go:build linux

package overlay

import (
	"testing"
	"unsafe"
)

// TestANodeIsSmall keeps what the kernel has cached of a large workspace within bounds: 208 is what Go's allocator gives for it.
func TestANodeIsSmall(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 && unsafe.Sizeof(Node{}) > 208 {
		t.Errorf("%d bytes", unsafe.Sizeof(Node{}))
	}
}
