package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// withoutCheckpoint names the target that nothing is protected in. In lines without a plain filesystem it's what the
// others are compared with.
const withoutCheckpoint = "no checkpoint"

// withHotBuffer names the target that has hyperfs as it is by default.
const withHotBuffer = "hot buffer"

// writer is a mount whose old files are written to for the first time after a checkpoint.
type writer struct {
	hyperfs
	files  int
	writes int // how many of them were written to since the last checkpoint
}

// firstWrites measures what the first write to an old file costs beside the same write where there is no checkpoint: opening
// an existing file, writing 4 KiB at its beginning, closing it. All mounts are there at the same time and take turns.
func (b *bench) firstWrites(l lower) error {
	for _, size := range []int{4 << 10, 64 << 10, 256 << 10, 1 << 20} {
		if err := b.firstWritesOf(l, size); err != nil {
			return err
		}
	}
	return nil
}

func firstWriteLine(size int) string {
	return fmt.Sprintf("first write/4 KiB into a file of %d KiB", size>>10)
}

func (b *bench) firstWritesOf(l lower, size int) error {
	name := firstWriteLine(size)
	if !b.wants(name) {
		return nil
	}
	defer done(l, name, time.Now())
	ready, err := b.writers(l, name, size)
	defer func() {
		for _, w := range ready {
			cleanUp(w)
		}
	}()
	if err != nil {
		return err
	}
	for n := range b.scale(firstWriteRounds) {
		for i := range ready {
			w := ready[(i+n)%len(ready)] // nobody is always the first
			progress("%s: %s on %s, %d", l.name, name, w.label, n+1)
			b.writeSome(l, name, w)
			if b.ctx.Err() != nil {
				return b.ctx.Err()
			}
		}
	}
	return nil
}

// filesOf is how many files of a size take part: fewer of large ones, as each mount has its own.
func filesOf(size int) int {
	return max(firstWriteTurn, min(400, 128<<20/size))
}

const (
	firstWriteTurn   = 50 // writes of one mount before it's another one's turn
	firstWriteRounds = 80
	collectTime      = 50 * time.Millisecond // the checkpoint before is collected in the background
)

// writers mounts what takes part, each on a tree of its own.
func (b *bench) writers(l lower, line string, size int) ([]*writer, error) {
	var ready []*writer
	for i, flags := range firstWriteFlags {
		w := &writer{hyperfs: hyperfs{program: b.o.hyperfs, dir: filepath.Join(l.dir, fmt.Sprint("first-write-", i)), flags: flags.flags, label: flags.label}, files: filesOf(size)}
		err := makeFiles(w.dir, w.files, size)
		if err == nil {
			err = w.mount(b.ctx)
		}
		if err != nil {
			b.report.add(l, line, w.label, 0, err)
			cleanUp(w)
			continue
		}
		w.writes = w.files
		ready = append(ready, w)
	}
	return ready, b.ctx.Err()
}

var firstWriteFlags = []struct {
	label string
	flags []string
}{
	{withoutCheckpoint, nil},
	{withHotBuffer, nil},
	{"tmpfs", []string{"--no-hot", "--tier", "tmpfs"}},
	{"posix-link", []string{"--no-hot", "--tier", "posix-link"}},
	{"pure-manifest", []string{"--no-hot", "--tier", "pure-manifest"}},
}

func makeFiles(dir string, files, size int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), bytes.Repeat([]byte{1}, size), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writeSome times a turn of writes, each into another file than since the last checkpoint, and puts down what one of them took.
func (b *bench) writeSome(l lower, line string, w *writer) {
	if w.writes+firstWriteTurn > w.files {
		w.writes = 0
		if err := w.checkpointUnless(b.ctx); err != nil {
			b.report.add(l, line, w.label, 0, err)
			return
		}
	}
	block := bytes.Repeat([]byte{2}, 4<<10)
	start := time.Now()
	for range firstWriteTurn {
		name := filepath.Join(w.dir, fmt.Sprint(w.writes))
		w.writes++
		if err := writeBlock(name, block); err != nil {
			b.report.add(l, line, w.label, 0, err)
			return
		}
	}
	b.report.add(l, line, w.label, time.Since(start)/firstWriteTurn, nil)
}

func (w *writer) checkpointUnless(ctx context.Context) error {
	if w.label == withoutCheckpoint {
		return nil
	}
	err := w.checkpoint(ctx)
	time.Sleep(collectTime)
	return err
}

func writeBlock(name string, p []byte) error {
	fd, err := unix.Open(name, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = unix.Pwrite(fd, p, 0)
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	return err
}
