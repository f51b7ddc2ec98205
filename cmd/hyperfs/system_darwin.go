package main

import (
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// takeStderr makes f what the process writes to stderr, as the Go runtime does when it dies.
func takeStderr(f *os.File) error { return unix.Dup2(int(f.Fd()), 2) }

// ourProgram names the program that this process runs.
func ourProgram() (string, error) { return os.Executable() }

// startDaemonProcess starts cmd.
func startDaemonProcess(cmd *exec.Cmd) error { return cmd.Start() }

// becomeExact is of use on Linux only.
func becomeExact() {}
