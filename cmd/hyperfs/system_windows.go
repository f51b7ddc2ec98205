package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/windows"
)

// kernelRelease gives the version of Windows.
func kernelRelease() string {
	v := windows.RtlGetVersion()
	return fmt.Sprintf("%d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
}

// neutralDir is where a daemon stands, so that it keeps no directory busy.
func neutralDir() string {
	dir, err := windows.GetSystemDirectory()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.VolumeName(dir) + `\`
}

// detach makes cmd a daemon that outlives us and our console, and gives it ready. It returns the number under which the
// daemon has that. A Ctrl-C on the console is not for it.
func detach(cmd *exec.Cmd, ready *os.File) (uintptr, error) {
	h := ready.Fd()
	if err := windows.SetHandleInformation(windows.Handle(h), windows.HANDLE_FLAG_INHERIT, windows.HANDLE_FLAG_INHERIT); err != nil {
		return 0, os.NewSyscallError("SetHandleInformation", err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		CreationFlags:              windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP,
		AdditionalInheritedHandles: []syscall.Handle{syscall.Handle(h)},
	}
	return h, nil
}

// askToEnd ends a daemon that is starting: it has no console over which it could be asked. Nothing is mounted here that
// would stay behind.
func askToEnd(p *os.Process) { _ = p.Kill() }

// passOn has nothing to do: what ends us by the console reaches the command too.
func passOn(signalled, os.Signal) {}

// checkStoreOwner lets every store be: files take their rights from the directory that they are made in, whoever makes
// them, so none is locked out.
func checkStoreOwner(string) error { return nil }

// takeStderr makes f what the process writes to stderr, as the Go runtime does when it dies.
func takeStderr(f *os.File) error {
	os.Stderr = f
	return windows.SetStdHandle(windows.STD_ERROR_HANDLE, windows.Handle(f.Fd()))
}

// ourProgram names the program that this process runs.
func ourProgram() (string, error) { return os.Executable() }

// startDaemonProcess starts cmd.
func startDaemonProcess(cmd *exec.Cmd) error { return cmd.Start() }

// becomeExact is of use on Linux only.
func becomeExact() {}
