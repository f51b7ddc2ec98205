//go:build !linux

package session

import (
	"context"
	"os"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Process is a command that was started.
type Process struct{}

// Start fails: commands are run on Linux only.
func (c Command) Start(context.Context) (*Process, error) {
	if _, err := c.complete(); err != nil {
		return nil, err
	}
	return nil, errs.New(errs.Unsupported, op, "", "commands are run on Linux only").WithHint("start the program directly")
}

// Run fails as Start does.
func (c Command) Run(ctx context.Context) (Result, error) {
	_, err := c.Start(ctx)
	return Result{}, err
}

// Signal does nothing: there is no Process.
func (*Process) Signal(os.Signal) error { return nil }

// Wait does nothing: there is no Process.
func (*Process) Wait() (Result, error) { return Result{}, nil }
