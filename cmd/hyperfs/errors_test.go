package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// A daemon that crashes ends with 2. That is no wrong usage, and what it said last is what its user needs.
func TestTheEndOfAnotherProgramIsNoWrongUsage(t *testing.T) {
	var out, errOut bytes.Buffer
	err := errs.New(control.Internal, "start the daemon", "", "%w: panic", &exec.ExitError{})
	if code := report(err, true, &out, &errOut); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(errOut.String(), "panic") || !strings.Contains(out.String(), `"INTERNAL"`) {
		t.Errorf("it says %q and %q", &errOut, &out)
	}
}
