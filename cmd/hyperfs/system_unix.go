//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// kernelRelease gives what uname -r prints.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// neutralDir is where a daemon stands, so that it keeps no directory busy.
func neutralDir() string { return "/" }

// detach makes cmd a daemon that outlives us and our terminal, and gives it ready. It returns the number under which the
// daemon has that.
func detach(cmd *exec.Cmd, ready *os.File) (uintptr, error) {
	cmd.ExtraFiles = []*os.File{ready}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return 3, nil
}

// askToEnd lets a daemon that is starting end cleanly.
func askToEnd(p *os.Process) { _ = p.Signal(syscall.SIGTERM) }

// passOn gives a command a signal that we got.
func passOn(p signalled, s os.Signal) { _ = p.Signal(s) } // it may have ended just now
