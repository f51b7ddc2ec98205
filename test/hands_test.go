package test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/hyperfs/hyperfs/test/ops"
	"golang.org/x/sys/unix"
)

// envHands makes this test binary the hands of a test: it executes the operations that it reads. They must be a process of
// their own, because a page fault in a mapping of a FUSE file stops the whole Go process that would have to answer it.
const envHands = "HYPERFS_TEST_HANDS"

// closeAll is what hands are told to close all handles.
const closeAll ops.Kind = "close-all"

// answer is what hands say about an operation.
type answer struct {
	Errno unix.Errno
	Other string // of an error without an errno
}

// serveHands executes operations on dir until there are no more.
func serveHands(dir string) error {
	fs, err := ops.OpenDirFS(dir)
	if err != nil {
		return err
	}
	defer fs.Close()
	x := ops.NewExecutor(fs)
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	out := json.NewEncoder(os.Stdout)
	for {
		var o ops.Op
		if err := in.Decode(&o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		if err := execute(x, o); err != nil && !errors.As(err, &a.Errno) {
			a.Other = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

func execute(x *ops.Executor, o ops.Op) error {
	if o.Kind == closeAll {
		return x.CloseHandles()
	}
	return x.Apply(o)
}

// hands are such a process, seen from the test.
type hands struct {
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
	end io.Closer
}

func newHands(dir string) (*hands, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envHands+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &hands{cmd: cmd, in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out)), end: in}, nil
}

// Apply has an operation executed.
func (h *hands) Apply(o ops.Op) error {
	if err := h.in.Encode(o); err != nil {
		return fmt.Errorf("tell the hands: %w", err)
	}
	var a answer
	if err := h.out.Decode(&a); err != nil {
		return fmt.Errorf("hear from the hands: %w", err)
	}
	switch {
	case a.Errno != 0:
		return a.Errno
	case a.Other == ops.ErrNoHandle.Error():
		return ops.ErrNoHandle
	case a.Other != "":
		return errors.New(a.Other)
	}
	return nil
}

// CloseHandles has all handles closed.
func (h *hands) CloseHandles() error { return h.Apply(ops.Op{Kind: closeAll}) }

// Close ends the process.
func (h *hands) Close() error { return errors.Join(h.end.Close(), h.cmd.Wait()) }
