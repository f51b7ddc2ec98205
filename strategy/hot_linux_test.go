package strategy_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/strategy"
	"github.com/hyperfs/hyperfs/strategy/strategytest"
	"golang.org/x/sys/unix"
)

// openHot opens the hot buffer with its segments in dir/hot.
func openHot(t testing.TB, dir string, o strategy.HotOptions) *strategy.HotBuffer {
	t.Helper()
	hot := filepath.Join(dir, "hot")
	if err := os.MkdirAll(hot, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(hot)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	h, err := strategy.OpenHot(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// save puts all that a file has now into the buffer.
func save(h *strategy.HotBuffer, f *os.File) (strategy.Ref, bool) {
	info, err := f.Stat()
	if err != nil {
		return strategy.Ref{}, false
	}
	return h.Save(int(f.Fd()), info.Size())
}

// buffered is the hot buffer with a tier behind it, as one Strategy: it names preimages as its caller does, which the buffer itself
// does not.
type buffered struct {
	strategy.Strategy
	hot *strategy.HotBuffer

	mu    sync.Mutex
	names map[string]strategy.Ref // of what is in the buffer
}

func (b *buffered) Kind() strategy.Kind { return strategy.Hot }

func (b *buffered) inHot(ref strategy.Ref) (strategy.Ref, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own, ok := b.names[ref.Name]
	return own, ok && ref.Tier == strategy.Hot
}

// inTier is a reference for the tier. That of another kind stays what it is, and is refused.
func inTier(ref strategy.Ref) strategy.Ref {
	if ref.Tier == strategy.Hot {
		ref.Tier = strategy.PureManifest
	}
	return ref
}

func (b *buffered) Save(src *os.File, name string) (strategy.Ref, error) {
	if err := b.Strategy.Verify(strategy.Ref{Tier: strategy.PureManifest, Name: name}); errors.Is(err, fs.ErrInvalid) {
		return strategy.Ref{}, err
	}
	if _, taken := b.inHot(strategy.Ref{Tier: strategy.Hot, Name: name}); taken {
		return strategy.Ref{}, fs.ErrExist
	}
	own, ok := save(b.hot, src)
	if !ok {
		ref, err := b.Strategy.Save(src, name)
		ref.Tier = strategy.Hot
		return ref, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names[name] = own
	own.Name = name
	return own, nil
}

func (b *buffered) Restore(ref strategy.Ref, dst *os.File) error {
	if own, ok := b.inHot(ref); ok {
		return b.hot.Restore(own, dst)
	}
	return b.Strategy.Restore(inTier(ref), dst)
}

func (b *buffered) Materialize(ref strategy.Ref, dirfd int, name string, share bool) error {
	if own, ok := b.inHot(ref); ok {
		return b.hot.Materialize(own, dirfd, name, share)
	}
	return b.Strategy.Materialize(inTier(ref), dirfd, name, share)
}

func (b *buffered) Open(ref strategy.Ref) (*os.File, error) {
	if own, ok := b.inHot(ref); ok {
		return b.hot.Open(own)
	}
	return b.Strategy.Open(inTier(ref))
}

func (b *buffered) Verify(ref strategy.Ref) error {
	if own, ok := b.inHot(ref); ok {
		return b.hot.Verify(own)
	}
	return b.Strategy.Verify(inTier(ref))
}

func (b *buffered) Sum(ref strategy.Ref) (strategy.Ref, error) {
	if _, ok := b.inHot(ref); ok {
		return ref, nil
	}
	ref, err := b.Strategy.Sum(inTier(ref))
	ref.Tier = strategy.Hot
	return ref, err
}

func (b *buffered) Remove(ref strategy.Ref) error {
	own, ok := b.inHot(ref)
	if !ok {
		return b.Strategy.Remove(inTier(ref))
	}
	if err := b.hot.Remove(own); err != nil {
		return err
	}
	if err := b.hot.Verify(own); !errors.Is(err, strategy.ErrMissing) {
		return fmt.Errorf("what was removed is there still: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.names, ref.Name)
	return nil
}

func (b *buffered) List(fn func(name string, size int64) error) error {
	have := map[string]int64{}
	if err := b.hot.List(func(name string, size int64) error { have[name] = size; return nil }); err != nil {
		return err
	}
	b.mu.Lock()
	names := maps.Clone(b.names)
	b.mu.Unlock()
	for name, own := range names {
		if size, ok := have[own.Name]; ok {
			if err := fn(name, size); err != nil {
				return err
			}
		}
	}
	return b.Strategy.List(fn)
}

func (b *buffered) Close() error { return errors.Join(b.hot.Close(), b.Strategy.Close()) }

// placeOf reads the name of a preimage in the buffer.
func placeOf(t testing.TB, dir string, own strategy.Ref) (path string, off int64) {
	t.Helper()
	segment, at, _ := strings.Cut(own.Name, ".")
	off, err := strconv.ParseInt(at, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "hot", segment), off
}

func conformHot(t *testing.T, dir string, o strategy.HotOptions) {
	strategytest.Run(t, func(t *testing.T) (strategy.Strategy, string, strategytest.Kept) {
		return hotSubject(t, dir, func(own string) *strategy.HotBuffer { return openHot(t, own, o) })
	})
}

// hotSubject is what the conformance test gets for a case: the hot buffer that openIn opens in a directory of its own.
func hotSubject(t *testing.T, dir string, openIn func(own string) *strategy.HotBuffer) (strategy.Strategy, string, strategytest.Kept) {
	own, err := os.MkdirTemp(dir, "case")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(own) })
	b := &buffered{Strategy: open(t, strategy.PureManifest, own, strategy.Options{}), hot: openIn(own), names: map[string]strategy.Ref{}}
	kept := strategytest.Kept{Dir: filepath.Join(own, "hot"), Place: func(ref strategy.Ref) (string, int64) {
		if in, ok := b.inHot(ref); ok {
			return placeOf(t, own, in)
		}
		return filepath.Join(own, "backup", ref.Name), 0
	}}
	return b, own, kept
}

func TestHotBufferConforms(t *testing.T) {
	conformHot(t, t.TempDir(), strategy.HotOptions{Limits: strategy.DefaultHotLimits})
}

func TestHotBufferConformsWithSync(t *testing.T) {
	conformHot(t, t.TempDir(), strategy.HotOptions{Limits: strategy.DefaultHotLimits, Sync: true})
}

func TestHotBufferConformsOnEachFilesystem(t *testing.T) {
	for name, mount := range map[string]func(testing.TB, int64) string{
		"btrfs": testfs.Btrfs, "xfs": testfs.XFS, "ext4": testfs.Ext4, "tmpfs": testfs.Tmpfs,
		"overlay": func(t testing.TB, _ int64) string { return testfs.Overlay(t, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			conformHot(t, mount(t, 512<<20), strategy.HotOptions{Limits: strategy.DefaultHotLimits})
		})
	}
}

// hotFile makes a file that is open for reading.
func hotFile(t testing.TB, dir, name string, p []byte) *os.File {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, p, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func bytesOf(n int, b byte) []byte { return slices.Repeat([]byte{b}, n) }

// allocated is how much room the segments take, in bytes.
func allocated(t testing.TB, dir string) (total int64, files int) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "hot", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		total += st.Blocks * 512
	}
	return total, len(names)
}

func isTmpfs(t testing.TB, dir string) bool {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	return fs.Type == unix.TMPFS_MAGIC
}

// TestHotBufferSpillsBeyondEachLimit keeps the mirror from making room by never letting it end.
func TestHotBufferSpillsBeyondEachLimit(t *testing.T) {
	for name, c := range map[string]struct {
		limits strategy.HotLimits
		sizes  []int
		hits   uint64
	}{
		"bytes of a file": {strategy.HotLimits{FileBytes: 1000, TotalBytes: 1 << 20, Files: 100}, []int{1000, 1001, 999}, 2},
		"bytes in all":    {strategy.HotLimits{FileBytes: 1000, TotalBytes: 2500, Files: 100}, []int{1000, 1000, 501, 500, 1}, 3},
		"files":           {strategy.HotLimits{FileBytes: 1000, TotalBytes: 1 << 20, Files: 2}, []int{10, 10, 10, 0}, 2},
		"off":             {strategy.HotLimits{FileBytes: 1000, TotalBytes: 1 << 20}, []int{10}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			blocked := make(chan struct{})
			h := openHot(t, dir, strategy.HotOptions{Limits: c.limits, SyncRecords: func() error { <-blocked; return nil }})
			h.Recorded() // so that every round has records to wait for
			for i, size := range c.sizes {
				save(h, hotFile(t, dir, fmt.Sprint(i), bytesOf(size, 1)))
			}
			s := h.Stats()
			spills := uint64(len(c.sizes)) - c.hits
			if !s.On {
				spills = 0 // nobody asks a buffer that is off
			}
			if s.Hits != c.hits || s.Spills != spills || s.Files != int(c.hits) {
				t.Errorf("%d hits and %d spills are counted, %d files: want %d, %d", s.Hits, s.Spills, s.Files, c.hits, spills)
			}
			close(blocked)
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHotBufferTakesMoreOnceItIsMirrored(t *testing.T) {
	dir := t.TempDir()
	h := openHot(t, dir, strategy.HotOptions{Limits: strategy.HotLimits{FileBytes: 100, TotalBytes: 1 << 20, Files: 1}})
	defer func() { _ = h.Close() }()
	f := hotFile(t, dir, "f", bytesOf(100, 1))
	ref, ok := save(h, f)
	if !ok {
		t.Fatal("the first one was not taken")
	}
	waitFor(t, "the mirror", func() bool { return h.Mirrored(ref) })
	if _, ok := save(h, f); !ok {
		t.Error("the second one was not taken")
	}
	if s := h.Stats(); s.Mirrored == 0 || s.Files != 2 {
		t.Errorf("the counters are %+v", s)
	}
}

func TestHotBufferIsFoundAgain(t *testing.T) {
	dir := t.TempDir()
	h := openHot(t, dir, strategy.HotOptions{Limits: strategy.DefaultHotLimits})
	var refs []strategy.Ref
	for i := range 100 {
		ref, ok := save(h, hotFile(t, dir, "f", bytesOf(5000, byte(i+1))))
		if !ok {
			t.Fatal("it was not taken")
		}
		refs = append(refs, ref)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	kept := []strategy.Ref{refs[7], refs[50]}
	h = openHot(t, dir, strategy.HotOptions{}) // off, and yet it has what it had
	h.Adopt(slices.Values(kept))
	waitFor(t, "the rest to be freed", func() bool { n, _ := allocated(t, dir); return n <= 5*4096 })
	for i, ref := range refs {
		err := h.Verify(ref)
		if alive := i == 7 || i == 50; alive && err != nil || !alive && !errors.Is(err, strategy.ErrMissing) {
			t.Errorf("preimage %d: %v", i, err)
		}
	}
	for _, ref := range kept {
		if err := h.Remove(ref); err != nil {
			t.Error(err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if n, files := allocated(t, dir); n != 0 || files != 0 {
		t.Errorf("%d bytes are left in %d files", n, files)
	}
}

// TestHotBufferFreesWhatIsRemoved fills several segments, and removes all but a few.
func TestHotBufferFreesWhatIsRemoved(t *testing.T) {
	dir := t.TempDir()
	h := openHot(t, dir, strategy.HotOptions{Limits: strategy.HotLimits{FileBytes: 1 << 20, TotalBytes: 1 << 40, Files: 1 << 30}})
	f := hotFile(t, dir, "f", bytesOf(100_000, 7))
	var refs []strategy.Ref
	for range 500 {
		ref, ok := save(h, f)
		if !ok {
			t.Fatal("it was not taken")
		}
		refs = append(refs, ref)
	}
	if s := h.Stats(); s.Segments < 3 {
		t.Fatalf("there are %d segments", s.Segments)
	}
	for i, ref := range refs {
		if i%250 != 3 {
			if err := h.Remove(ref); err != nil {
				t.Fatal(err)
			}
		}
	}
	room := int64(2*(100_000+2*4096) + 2*4096) // two preimages, the pages at their ends, and that where the next one goes
	if isTmpfs(t, dir) {
		room += 2<<20 + 4096 // pages that are ready
	}
	waitFor(t, "the room to be freed", func() bool { n, _ := allocated(t, dir); return n <= room })
	for _, i := range []int{3, 253} {
		if err := h.Verify(refs[i]); err != nil {
			t.Error(err)
		}
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// TestAFailingHotBufferSpills fills the filesystem, makes it read-only, or takes the segment away.
func TestAFailingHotBufferSpills(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, dir string){
		"full": func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
		},
		"taken away": func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "hot")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := testfs.Tmpfs(t, 8<<20)
			var mu sync.Mutex
			var told []error
			h := openHot(t, dir, strategy.HotOptions{Limits: strategy.DefaultHotLimits, Failed: func(err error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, err)
			}})
			f := hotFile(t, dir, "f", bytesOf(100_000, 7))
			ref, ok := save(h, f)
			if !ok {
				t.Fatal("the first one was not taken")
			}
			fail(t, dir)
			waitFor(t, "a failure", func() bool { _, ok := save(h, f); return !ok })
			s := h.Stats()
			if s.On || s.Reason == "" || s.Spills == 0 {
				t.Errorf("the counters are %+v", s)
			}
			if name == "full" && h.Verify(ref) != nil {
				t.Error("what was saved before is gone")
			}
			_ = h.Close()
			mu.Lock()
			defer mu.Unlock()
			if len(told) != 1 {
				t.Errorf("the failure was told %d times: %v", len(told), told)
			}
		})
	}
}

// waitFor waits for what happens in the background.
func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for range 2000 {
		if holds() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}
