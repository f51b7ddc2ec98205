package strategytest

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// huge is the size of a file that is hardly anything but holes, in bytes: more than 32 bits can tell.
const huge = 6 << 30

// slack is what a filesystem may allocate beyond the data (its own structures, rounding, preallocation), or save.
const slack = 256 << 10 // bytes

// checkHoles fails the case if f doesn't have the holes of the content, or has others.
func (c content) checkHoles(b *bench, f *os.File) {
	b.Helper()
	var st unix.Stat_t
	b.must(unix.Fstat(int(f.Fd()), &st))
	space, data := st.Blocks*512, c.dataBytes()
	if space > data+slack {
		b.Errorf("%s takes up %d bytes for %d bytes of data: holes were filled", f.Name(), space, data)
	}
	if space < data-slack {
		b.Errorf("%s takes up %d bytes for %d bytes of data: zeros that were written became holes", f.Name(), space, data)
	}
	if got, want := firstData(b, f, c.size), c.firstBlock(); got < want {
		b.Errorf("%s has data from %d on, want %d: a small hole was filled", f.Name(), got, want)
	}
}

// firstBlock is where the first block with data starts.
func (c content) firstBlock() int64 {
	if len(c.pieces) == 0 {
		return c.size
	}
	return c.pieces[0].off &^ 4095
}

func firstData(b *bench, f *os.File, size int64) int64 {
	b.Helper()
	before := b.offset(f)
	off, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	if err == unix.ENXIO {
		return size
	}
	b.must(err)
	_, err = f.Seek(before, io.SeekStart)
	b.must(err)
	return off
}
