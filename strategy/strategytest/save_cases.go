package strategytest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"

	"github.com/hyperfs/hyperfs/strategy"
)

var saveCases = []testCase{
	{"Save and Restore leave offsets alone", offsetsStay},
	{"Save needs no permission beyond the open file", saveModeZero},
	{"Save of an unlinked file works", saveUnlinked},
	{"Save keeps the old preimage of a name that is taken", saveTaken},
	{"Save of a file that grows takes a beginning of it", saveGrowing},
	{"Save of a file that cannot be read leaves nothing", saveUnreadable},
	{"A preimage is independent of the original", preimageIsIndependent},
	{"Calls for different names may run at once", concurrently},
}

func offsetsStay(b *bench) {
	for i, c := range []content{dense(100), contents["holes in front, between, behind"]} {
		f := b.file("file", c)
		_, err := f.Seek(77, io.SeekStart)
		b.must(err)
		ref := b.save(f, fmt.Sprint("preimage", i))
		b.must(b.s.Restore(ref, f))
		if off := b.offset(f); off != 77 {
			b.Errorf("the offset is %d, want 77", off)
		}
	}
}

func saveModeZero(b *bench) {
	c := contents["a small hole in front"]
	f := b.file("file", c)
	b.must(f.Chmod(0))
	ref := b.save(f, "preimage")
	b.must(b.s.Restore(ref, b.file("dst", content{})))
	b.holds(b.path("dst"), c)
}

func saveUnlinked(b *bench) {
	c := contents["holes in front, between, behind"]
	f := b.file("file", c)
	if runtime.GOOS == "windows" {
		b.Skip("no file that package os has open can be removed here")
	}
	b.must(os.Remove(f.Name()))
	ref := b.save(f, "preimage")
	b.must(b.s.Restore(ref, b.file("dst", content{})))
	b.holds(b.path("dst"), c)
}

func saveTaken(b *bench) {
	first := dense(5000)
	ref := b.saved(first)
	if _, err := b.s.Save(b.file("other", dense(10)), ref.Name); !errors.Is(err, fs.ErrExist) {
		b.Errorf("saving under a taken name says %v", err)
	}
	b.must(b.s.Verify(ref))
	b.keeps(ref, first)
}

func saveGrowing(b *bench) {
	const start = 2 * mib
	f := b.file("file", content{})
	stop, done := make(chan struct{}), make(chan struct{})
	data := random(start + 16*mib)
	_, err := f.WriteAt(data[:start], 0)
	b.must(err)
	go func() {
		defer close(done)
		for at := start; at < len(data); at += 64 << 10 {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := f.WriteAt(data[at:at+64<<10], int64(at)); err != nil {
				b.Error(err)
				return
			}
		}
	}()
	for i := range 3 {
		ref := b.save(f, fmt.Sprint("preimage", i))
		if ref.Size < start {
			b.Fatalf("%d bytes were saved of at least %d", ref.Size, start)
		}
		b.must(b.s.Verify(ref))
		b.keeps(ref, sparse(ref.Size, piece{0, data[:ref.Size]}))
	}
	close(stop)
	<-done
}

func saveUnreadable(b *bench) {
	b.file("file", dense(100))
	f, err := os.OpenFile(b.path("file"), os.O_WRONLY, 0)
	b.must(err)
	defer func() { _ = f.Close() }()
	if _, err := b.s.Save(f, "preimage"); err == nil {
		b.Error("a file that is open for writing only was saved")
	}
	if names := b.names(); len(names) != 0 {
		b.Errorf("a failed Save left %v", names)
	}
}

func preimageIsIndependent(b *bench) {
	c := dense(200000)
	f := b.file("file", c)
	ref := b.save(f, "preimage")
	_, err := f.WriteAt(random(5000), 100)
	b.must(err)
	b.must(f.Truncate(150000))
	b.must(b.s.Verify(ref))
	b.keeps(ref, c)
}

func concurrently(b *bench) {
	var wg sync.WaitGroup
	for w := range 24 {
		c := dense(w*40000 + 1)
		src, dst := b.file(fmt.Sprint("src", w), c), b.file(fmt.Sprint("dst", w), content{})
		wg.Go(func() {
			name := fmt.Sprint("preimage", w)
			for range 3 {
				if err := cycle(b.s, src, dst, name); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for w := range 24 {
		b.holds(b.path(fmt.Sprint("dst", w)), dense(w*40000+1))
	}
}

func cycle(s strategy.Strategy, src, dst *os.File, name string) error {
	ref, err := s.Save(src, name)
	if err != nil {
		return err
	}
	return errors.Join(s.Verify(ref), s.Restore(ref, dst), s.Remove(ref))
}
