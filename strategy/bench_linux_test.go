package strategy_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/strategy"
)

// Each benchmark runs on the temporary directory's filesystem with the tiers that copy, and on btrfs with reflink too.
func benchmark(b *testing.B, fn func(b *testing.B, s strategy.Strategy, dir string, size int)) {
	btrfs := func(b *testing.B) string { return testfs.Btrfs(b, 1<<30) }
	for _, c := range []struct {
		name string
		dir  func(b *testing.B) string
		kind strategy.Kind
	}{
		{"temp/pure-manifest", func(b *testing.B) string { return b.TempDir() }, strategy.PureManifest},
		{"temp/tmpfs", func(b *testing.B) string { return b.TempDir() }, strategy.Tmpfs},
		{"btrfs/pure-manifest", btrfs, strategy.PureManifest},
		{"btrfs/reflink", btrfs, strategy.Reflink},
	} {
		for _, size := range []int{4 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", c.name, size>>10), func(b *testing.B) {
				dir := c.dir(b)
				s := open(b, c.kind, dir, strategy.Options{})
				defer func() { _ = s.Close() }()
				b.SetBytes(int64(size))
				b.ReportAllocs()
				fn(b, s, dir, size)
			})
		}
	}
}

func BenchmarkSave(b *testing.B) {
	benchmark(b, func(b *testing.B, s strategy.Strategy, dir string, size int) {
		src := writeFile(b, filepath.Join(dir, "src"), size)
		if err := src.Sync(); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			ref, err := s.Save(src, "preimage")
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := s.Remove(ref); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}

// BenchmarkSaveOfUnwrittenData saves files that the filesystem has not yet put on its disk.
func BenchmarkSaveOfUnwrittenData(b *testing.B) {
	benchmark(b, func(b *testing.B, s strategy.Strategy, dir string, size int) {
		for b.Loop() {
			b.StopTimer()
			src := writeFile(b, filepath.Join(dir, "src"), size)
			b.StartTimer()
			ref, err := s.Save(src, "preimage")
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			_ = src.Close()
			if err := s.Remove(ref); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}

func BenchmarkRestore(b *testing.B) {
	benchmark(b, func(b *testing.B, s strategy.Strategy, dir string, size int) {
		src := writeFile(b, filepath.Join(dir, "src"), size)
		ref, err := s.Save(src, "preimage")
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := src.WriteAt([]byte("changed"), int64(size)/2); err != nil {
				b.Fatal(err)
			}
			if err := s.Restore(ref, src); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	benchmark(b, func(b *testing.B, s strategy.Strategy, dir string, size int) {
		ref, err := s.Save(writeFile(b, filepath.Join(dir, "src"), size), "preimage")
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := s.Verify(ref); err != nil {
				b.Fatal(err)
			}
		}
	})
}
