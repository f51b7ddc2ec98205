package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// takeStderr makes f what the process writes to stderr, as the Go runtime does when it dies.
func takeStderr(f *os.File) error { return unix.Dup3(int(f.Fd()), 2, 0) }

// ourProgram names the program that this process runs, also when its file has been replaced.
func ourProgram() (string, error) { return "/proc/self/exe", nil }
