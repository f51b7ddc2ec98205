package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// smallFileGroup opens and creates small files one by one.
func (b *bench) smallFileGroup() group {
	files := b.scale(10_000)
	texts := sync.OnceValue(func() [][]byte { return texts(files, 1000) })
	return group{
		name:    "small",
		prepare: func(_ context.Context, dir string) error { return writeTree(dir, texts()) },
		workloads: []workload{
			{name: fmt.Sprintf("open, close %d files", files), warm: true,
				run: func(_ context.Context, dir string) error { return openAll(dir, files) }},
			{name: fmt.Sprintf("create, write, close %d files", files), each: files, before: removeDir("new"),
				run: func(_ context.Context, dir string) error { return writeTree(filepath.Join(dir, "new"), texts()) }},
			{name: fmt.Sprintf("rewrite %d old files", files),
				run: func(_ context.Context, dir string) error { return writeTree(dir, texts()) }},
		},
	}
}

func openAll(dir string, files int) error {
	for i := range files {
		f, err := os.Open(filepath.Join(dir, treePath(i)))
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

// removeDir is a step before a workload.
func removeDir(name string) func(context.Context, string, int) error {
	return func(_ context.Context, dir string, _ int) error { return os.RemoveAll(filepath.Join(dir, name)) }
}

// largeFileGroup reads and writes a large file. New files have no preimage; the lines about an old one show what that costs.
func (b *bench) largeFileGroup() group {
	size, random := b.o.sizeMiB<<20, b.scale(20_000)
	on := func(name string, f func(path string) error) func(context.Context, string) error {
		return func(_ context.Context, dir string) error { return f(filepath.Join(dir, name)) }
	}
	write := on("new", func(p string) error { return writeFile(p, size) })
	writeBefore := func(ctx context.Context, dir string, _ int) error { return write(ctx, dir) }
	reads := func(p string) error { return randomIO(p, os.O_RDONLY, size, random) }
	writes := func(p string) error { return randomIO(p, os.O_WRONLY, size, random) }
	label := func(s string) string { return fmt.Sprintf("%s, %d MiB", s, b.o.sizeMiB) }
	count := func(s string) string { return fmt.Sprintf("%d random 4 KiB %s", random, s) }
	return group{
		name:     "large",
		daemonIO: true,
		prepare:  func(_ context.Context, dir string) error { return writeFile(filepath.Join(dir, "old"), size) },
		workloads: []workload{
			{name: label("write a new file"), before: removeDir("new"), run: write},
			{name: label("read a file"), warm: true, run: on("new", readFile)},
			{name: count("reads"), warm: true, run: on("new", reads)},
			{name: count("writes, new file"), before: writeBefore, fresh: true, run: on("new", writes)},
			b.creatorWrites(count("writes, by its creator"), size, random),
			{name: label("fsync a new file"), before: writeBefore, fresh: true, run: on("new", syncFile)},
			{name: label("overwrite an old file"), run: on("old", func(p string) error { return overwrite(p, size) })},
			{name: label("change one byte of an old file"), run: on("old", func(p string) error { return overwrite(p, 1) })},
		},
	}
}

// creatorWrites writes to a large file that has been open since it was created.
func (b *bench) creatorWrites(name string, size int64, random int) workload {
	var f *os.File
	return workload{
		name:  name,
		fresh: true,
		before: func(_ context.Context, dir string, _ int) (err error) {
			path := filepath.Join(dir, "new")
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			if f, err = os.Create(path); err != nil {
				return err
			}
			if err = fill(f, size); err != nil {
				f.Close()
			}
			return err
		},
		run: func(context.Context, string) error { return errors.Join(randomAt(f.WriteAt, size, random), f.Close()) },
	}
}

const block = 1 << 20

// blockOfText is what large files are filled with.
var blockOfText = words(rand.New(rand.NewPCG(3, 3)), block)

func writeFile(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(fill(f, size), f.Close())
}

// overwrite writes over the start of a file without cutting it first.
func overwrite(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(fill(f, size), f.Close())
}

func fill(f *os.File, size int64) error {
	for off := int64(0); off < size; off += block {
		if _, err := f.WriteAt(blockOfText[:min(block, size-off)], off); err != nil {
			return err
		}
	}
	return nil
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func readFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, block)
	for {
		if _, err := f.Read(buf); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func randomIO(path string, flag int, size int64, n int) error {
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return err
	}
	at := f.ReadAt
	if flag == os.O_WRONLY {
		at = f.WriteAt
	}
	return errors.Join(randomAt(at, size, n), f.Close())
}

// randomAt reads or writes 4 KiB in n places, the same ones each time.
func randomAt(at func([]byte, int64) (int, error), size int64, n int) error {
	r := rand.New(rand.NewPCG(4, 4))
	buf := make([]byte, 4096)
	for range n {
		if _, err := at(buf, r.Int64N(size/4096)*4096); err != nil {
			return err
		}
	}
	return nil
}

// unlessExit gives nil for a program that ended with code.
func unlessExit(err error, code int) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == code {
		return nil
	}
	return err
}
