package strategy

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHolesAreSavedAndRestoredAsHoles also where a file ends within one.
func TestHolesAreSavedAndRestoredAsHoles(t *testing.T) {
	b := newBlockBench(t)
	const size = 64*block4 + 1000
	old := make([]byte, size)
	copy(old[10*block4:], randomBytes(8, 3*block4))
	src := b.file(nil)
	_, err := src.WriteAt(old[10*block4:13*block4], 10*block4)
	b.ok(err)
	b.ok(src.Truncate(size))
	ref := b.begin("p", src, size, Extent{0, 12 * block4}, Extent{12 * block4, size})
	if st, err := os.Stat(b.path(ref)); err != nil || st.Size() > 3*block4+headerLen+10*entryLen {
		t.Errorf("three blocks of data and holes take %d bytes (%v)", st.Size(), err)
	}
	f := b.file(bytes.Repeat([]byte{7}, size+5000))
	c, err := b.b.OpenChain([]Ref{ref})
	b.ok(err)
	defer c.Close()
	b.ok(c.Apply(f))
	got, err := os.ReadFile(f.Name())
	b.ok(err)
	if !bytes.Equal(got, old) {
		t.Error("it does not come back")
	}
	if start, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA); err != nil || start != 10*block4 {
		t.Errorf("data begins at %d (%v)", start, err)
	}
	if _, err := unix.Seek(int(f.Fd()), 13*block4, unix.SEEK_DATA); err != unix.ENXIO {
		t.Errorf("there is data behind (%v)", err)
	}
}

// TestZerosThatAreNoHoleStayData as the layout of a file is part of what comes back.
func TestZerosThatAreNoHoleStayData(t *testing.T) {
	b := newBlockBench(t)
	src := b.file(make([]byte, 4*block4))
	ref := b.begin("p", src, 4*block4, Extent{0, 2 * block4})
	f := b.file(nil)
	b.ok(f.Truncate(4 * block4))
	c, err := b.b.OpenChain([]Ref{ref})
	b.ok(err)
	defer c.Close()
	b.ok(c.Apply(f))
	if end, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE); err != nil || end != 2*block4 {
		t.Errorf("data ends at %d (%v)", end, err)
	}
}
