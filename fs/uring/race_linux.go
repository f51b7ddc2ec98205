//go:build race

package uring

import "syscall"

// The race detector knows that what was done before a write to a descriptor comes before what is done after a read of one, and so that a request of a program is made
// before it is answered, as if by /dev/fuse. It must be told where program and server are one process, as in tests.

var null, _ = syscall.Open("/dev/null", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
var zero, _ = syscall.Open("/dev/zero", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)

func raceRead() { _, _ = syscall.Read(zero, make([]byte, 1)) }

func raceWrite() { _, _ = syscall.Write(null, make([]byte, 1)) }
