//go:build !linux

package runtime

import (
	"net"
	"os"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// channels are what a process is connected by.
type channels struct {
	conn     net.Conn
	out, err *stream

	theirs, stdout, stderr *os.File
}

// newChannels fails: commands are run on Linux only, and so are runtimes that are processes.
func newChannels() (*channels, error) {
	return nil, errs.New(errs.Unsupported, opStart, "", "processes are run on Linux only").WithHint("package javascript has an engine inside")
}

func (*channels) closeTheirs() {}

// stream is what a process writes.
type stream struct{ limit int }

type written struct {
	text []byte
	cut  bool
}

func (*stream) copy() {}

func (*stream) take() written { return written{} }

func (*stream) close() {}

func isReset(error) bool { return false }
