package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processesCurve measures processes that work at once, each in a directory of its own: what one operation takes.
func (b *bench) processesCurve(l lower, c *curve) error {
	*c = curve{Name: "processes", Title: "Small files, several processes at once: time of one operation", X: "processes"}
	if !b.wants("curves/" + c.Name) {
		return nil
	}
	counts := []int{1, 2, 4, 8}
	targets := []target{&plain{dir: filepath.Join(l.dir, "plain")}, &hyperfs{program: b.o.hyperfs, dir: filepath.Join(l.dir, "hyperfs")}}
	for _, t := range targets {
		defer cleanUp(t)
		for i := range counts[len(counts)-1] {
			if err := makeTree(filepath.Join(t.base(), fmt.Sprint(i)), workerFiles, 1000); err != nil {
				return err
			}
		}
		if err := t.mount(b.ctx); err != nil {
			return err
		}
	}
	for n := range b.scale(10) {
		for _, kind := range []string{"stat", "read", "create"} {
			for _, count := range counts {
				for i := range targets {
					t := targets[(i+n)%len(targets)]
					progress("%s: %d processes, %s on %s, %d", l.name, count, kind, t.name(), n+1)
					if err := t.checkpoint(b.ctx); err != nil {
						return err
					}
					each, err := b.together(t.root(), kind, count)
					if err != nil {
						return fmt.Errorf("%s by %d processes on %s: %w", kind, count, t.name(), err)
					}
					c.add(kind+", "+t.name(), count, each)
				}
			}
		}
	}
	return nil
}

// workerFiles is how many files each process has.
const workerFiles = 1000

// together lets processes work at the same time, and gives what one operation took in the mean of them.
func (b *bench) together(root, kind string, count int) (time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	var all []*workerProcess
	defer func() {
		cancel() // ends those that are still there after an error
		for _, w := range all {
			w.cmd.Wait()
		}
	}()
	for i := range count {
		w, err := startWorker(ctx, self, kind, filepath.Join(root, fmt.Sprint(i)))
		if err != nil {
			return 0, err
		}
		all = append(all, w)
	}
	for _, w := range all { // all are ready before the first may go
		if _, err := w.out.ReadString('\n'); err != nil {
			return 0, err
		}
	}
	for _, w := range all {
		if _, err := io.WriteString(w.in, "go\n"); err != nil {
			return 0, err
		}
	}
	var sum time.Duration
	for _, w := range all {
		answer, err := w.out.ReadString('\n')
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(answer), 10, 64)
		if err != nil {
			return 0, errors.New(strings.TrimSpace(answer))
		}
		sum += time.Duration(ns)
	}
	return sum / time.Duration(count), nil
}

// workerProcess is this program, which works in a directory.
type workerProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startWorker(ctx context.Context, self, kind, dir string) (*workerProcess, error) {
	w := &workerProcess{cmd: exec.CommandContext(ctx, self, workerCommand, kind, dir)}
	w.cmd.Stderr = os.Stderr
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(out)
	return w, w.cmd.Start()
}

// workerCommand as the first argument makes this program a worker.
const workerCommand = "worker"

// work is what a worker does: it says that it is ready, waits for a line, works, and says how many ns one operation took, or why it could not.
func work(kind, dir string) {
	fn := map[string]func(string) (int, error){"stat": statWork, "read": readWork, "create": createWork}[kind]
	if kind != "create" {
		fn(dir) // so that it is warm
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return
	}
	start := time.Now()
	n, err := fn(dir)
	if err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Println(time.Since(start).Nanoseconds() / int64(n))
}

func statWork(dir string) (n int, err error) {
	const passes = 30
	for range passes {
		err = errors.Join(err, statAll(dir, workerFiles))
	}
	return passes * workerFiles, err
}

func readWork(dir string) (n int, err error) {
	for i := range workerFiles {
		if _, err := os.ReadFile(filepath.Join(dir, treePath(i))); err != nil {
			return 0, err
		}
	}
	return workerFiles, nil
}

func createWork(dir string) (n int, err error) {
	fresh, err := os.MkdirTemp(dir, "new")
	if err != nil {
		return 0, err
	}
	for i := range workerFiles {
		if err := os.WriteFile(filepath.Join(fresh, fmt.Sprint(i)), blockOfText[:1000], 0o644); err != nil {
			return 0, err
		}
	}
	return workerFiles, nil
}
