//go:build linux

package overlay_test

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// largeBench is a workspace with one file of a size, open for writing.
type largeBench struct {
	*testing.B
	dir  string
	w    *overlay.Workspace
	h    *overlay.Handle
	size int64
	last string
}

// wholeOnly is a LargeMin that no file reaches.
const wholeOnly = 1 << 50

func newLargeBench(b *testing.B, size int64, cfg overlay.Config) *largeBench {
	b.Helper()
	l := &largeBench{B: b, dir: b.TempDir(), size: size}
	f, err := os.Create(filepath.Join(l.dir, "large"))
	l.ok(err)
	p := pattern(1, 1<<20)
	for off := int64(0); off < size; off += int64(len(p)) {
		_, err := f.WriteAt(p[:min(int64(len(p)), size-off)], off)
		l.ok(err)
	}
	l.ok(f.Sync()) // a clone would have to do that first
	l.ok(f.Close())
	cfg.Workspace, cfg.NoTmpfs, cfg.MaxCheckpoints = l.dir, true, 1<<30
	l.w, err = overlay.Open(cfg)
	l.ok(err)
	b.Cleanup(func() { _ = l.w.Close() })
	n, _, err := l.w.Tree().Lookup(l.w.Tree().Root(), "large")
	l.ok(err)
	l.h, err = l.w.Tree().Open(n, unix.O_RDWR, false, nil)
	l.ok(err)
	b.Cleanup(l.h.Release)
	return l
}

func (l *largeBench) ok(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// checkpoint makes one and forgets the one before.
func (l *largeBench) checkpoint() {
	c, err := l.w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	l.ok(err)
	if l.last != "" {
		l.ok(l.w.Drop(context.Background(), l.last))
	}
	l.last = c.ID
}

func (l *largeBench) write(p []byte, off int64) {
	_, err := l.h.WriteAt(p, off)
	l.ok(err)
}

// kept gives how many bytes the preimages in the store have.
func (l *largeBench) kept() (n int64) {
	l.ok(filepath.WalkDir(filepath.Join(l.dir, overlay.StoreName, "backup"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				n += st.Size()
			}
		}
		return err
	}))
	return n
}

// BenchmarkBlocksFirstWrite is the first write of 4 KiB after a checkpoint, to a file that is kept whole, or by blocks, or by whatever is
// best where TMPDIR is.
func BenchmarkBlocksFirstWrite(b *testing.B) {
	sizes := []int64{64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20}
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%d KiB, whole", size>>10), func(b *testing.B) {
			firstBlocks(b, size, overlay.Config{Tier: "pure-manifest", LargeMin: wholeOnly})
		})
		b.Run(fmt.Sprintf("%d KiB, blocks", size>>10), func(b *testing.B) {
			firstBlocks(b, size, overlay.Config{Tier: "pure-manifest", LargeMin: 4096})
		})
	}
	b.Run("1 GiB", func(b *testing.B) { firstBlocks(b, 1<<30, overlay.Config{}) })
}

func firstBlocks(b *testing.B, size int64, cfg overlay.Config) {
	l := newLargeBench(b, size, cfg)
	r, p := rand.New(rand.NewPCG(1, 1)), pattern(2, 4096)
	for b.Loop() {
		b.StopTimer()
		l.checkpoint()
		b.StartTimer()
		l.write(p, r.Int64N(size/4096)*4096)
	}
}

// BenchmarkBlocksRandomWrites are 1,000 random writes of 4 KiB after a checkpoint, as a database makes them.
func BenchmarkBlocksRandomWrites(b *testing.B) {
	const size, writes = 200 << 20, 1000
	for _, block := range []int64{4 << 10, 16 << 10, 64 << 10} {
		for _, hot := range []int64{size, size / 20} {
			b.Run(fmt.Sprintf("blocks of %d KiB, within %d MiB", block>>10, hot>>20), func(b *testing.B) {
				l := newLargeBench(b, size, overlay.Config{Tier: "pure-manifest", BlockSize: block})
				r, p := rand.New(rand.NewPCG(1, 1)), pattern(2, 4096)
				kept := int64(0)
				for b.Loop() {
					b.StopTimer()
					l.checkpoint()
					b.StartTimer()
					for range writes {
						l.write(p, r.Int64N(hot/4096)*4096)
					}
				}
				l.checkpoint()
				for range writes {
					l.write(p, r.Int64N(hot/4096)*4096)
				}
				kept = l.kept()
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/writes, "µs/write")
				b.ReportMetric(float64(kept)/(1<<20), "MiB-kept")
			})
		}
	}
}

// BenchmarkBlocksOverwrite overwrites a file of 256 MiB from its beginning to its end after a checkpoint: what blocks are worst at.
func BenchmarkBlocksOverwrite(b *testing.B) {
	const size = 256 << 20
	for _, piece := range []int64{4 << 10, 128 << 10, 1 << 20} {
		for how, largeMin := range map[string]int64{"whole": wholeOnly, "blocks": 0} {
			b.Run(fmt.Sprintf("pieces of %d KiB, %s", piece>>10, how), func(b *testing.B) {
				l := newLargeBench(b, size, overlay.Config{Tier: "pure-manifest", LargeMin: largeMin})
				p := pattern(2, int(piece))
				b.SetBytes(size)
				for b.Loop() {
					b.StopTimer()
					l.checkpoint()
					b.StartTimer()
					for off := int64(0); off < size; off += piece {
						l.write(p, off)
					}
				}
			})
		}
	}
}

// BenchmarkBlocksRollback changes one block, or 1,000, of a file of 1 GiB, and rolls back.
func BenchmarkBlocksRollback(b *testing.B) {
	for _, writes := range []int{1, 1000} {
		b.Run(fmt.Sprintf("%d blocks of 1 GiB", writes), func(b *testing.B) {
			l := newLargeBench(b, 1<<30, overlay.Config{})
			r, p := rand.New(rand.NewPCG(1, 1)), pattern(2, 4096)
			l.checkpoint()
			for b.Loop() {
				b.StopTimer()
				for range writes {
					l.write(p, r.Int64N(1<<30/4096)*4096)
				}
				b.StartTimer()
				_, err := l.w.Rollback(context.Background(), l.last, overlay.RollbackOptions{})
				l.ok(err)
			}
		})
	}
}
