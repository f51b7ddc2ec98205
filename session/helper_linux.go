package session

import (
	"encoding/gob"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
)

const (
	// helperName is the argument 0 of a helper.
	helperName = "hyperfs-exec-helper"
	// helperConn is the descriptor of its connection to the caller.
	helperConn = 3
)

// init makes this process a helper if it was started as one. That it happens here, and not in a function which a program calls,
// makes sure that no program runs again in the helper's place.
func init() {
	if len(os.Args) != 1 || os.Args[0] != helperName {
		return
	}
	helper{}.main()
	os.Exit(0)
}

// helper supervises one command.
type helper struct {
	launch
	in  *gob.Decoder
	out *gob.Encoder
}

func (h helper) main() {
	conn := os.NewFile(helperConn, "caller")
	h.in, h.out = gob.NewDecoder(conn), gob.NewEncoder(conn)
	if h.in.Decode(&h.launch) != nil {
		return // the caller is gone
	}
	pid, group, err := h.start()
	if err != nil {
		_ = h.out.Encode(reply{Failed: failureOf(err)}) // nobody else could be told
		return
	}
	if h.out.Encode(reply{Started: true}) != nil {
		h.supervise(pid, group, nil)
		return
	}
	requests := make(chan request)
	go func() {
		defer close(requests)
		for {
			var r request
			if h.in.Decode(&r) != nil {
				return
			}
			requests <- r
		}
	}()
	_ = h.out.Encode(h.supervise(pid, group, requests)) // the end is the end, also when nobody hears of it
}

// start prepares everything and starts the command. It reports whether the command has a process group of its own.
func (h helper) start() (pid int, group bool, err error) {
	// What the caller's own starter left open would lead out of a sandbox, and into files that no one expects here.
	if err := unix.CloseRange(helperConn, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 0, false, unsupported("descriptors cannot be closed", err)
	}
	takeSignals()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, false, os.NewSyscallError("prctl", err)
	}
	if h.Offline {
		if err := loopback(); err != nil {
			return 0, false, unsupported("the loopback device", err)
		}
	}
	if h.Private {
		if err := h.makeMounts(); err != nil {
			return 0, false, err
		}
	}
	program, err := h.find()
	if err != nil {
		return 0, false, err
	}
	group = !hasTerminal()
	type result struct {
		pid int
		err error
	}
	started := make(chan result)
	go func() {
		// The thread is never given back, as it has given up its rights. It must not end either: the command would, by Pdeathsig.
		runtime.LockOSThread()
		pid, err := h.spawn(program, group)
		started <- result{pid, err}
		select {}
	}()
	r := <-started
	return r.pid, group, r.err
}

// takeSignals makes signals that the terminal sends to all of its foreground harmless for the helper: the command decides.
// What the caller ignores stays ignored, for the command too, as nohup wants it.
func takeSignals() {
	ch := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(ch, s) // what is not taken from the channel is dropped
		}
	}
}

// hasTerminal reports whether there is a terminal whose foreground the command may belong to. It then stays in the caller's process group.
func hasTerminal() bool {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// spawn gives up what rights the command must not have and starts it, both on this thread.
func (h helper) spawn(program string, group bool) (int, error) {
	if err := h.restrict(); err != nil {
		return 0, err
	}
	pid, err := syscall.ForkExec(program, h.Args, &syscall.ProcAttr{
		Dir:   h.Dir,
		Env:   h.Env,
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: group, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, h.startFailed(false, err)
	}
	return pid, nil
}

// startFailed is the failure of a command that cannot be started.
func (h helper) startFailed(notFound bool, err error) *failure {
	f := &failure{Code: errs.Exec, On: h.Args[0], Text: err.Error(), Start: true, NotFound: notFound}
	errors.As(err, &f.Errno)
	return f
}

// find gives the path of the program as the command sees it, found as a shell in Dir finds it.
func (h helper) find() (string, error) {
	if st, err := os.Stat(h.Dir); err != nil {
		return "", errs.Wrap(errs.Path, op, h.Dir, bare(err))
	} else if !st.IsDir() {
		return "", errs.New(errs.Path, op, h.Dir, "it is not a directory")
	}
	name := h.Args[0]
	if strings.ContainsRune(name, '/') {
		return h.executable(name)
	}
	var refused error
	for _, dir := range filepath.SplitList(h.variable("PATH")) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(h.Dir, dir)
		}
		if unix.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS) != nil {
			continue // one that su has left in PATH, of another user, says nothing about the program
		}
		path, err := h.executable(filepath.Join(dir, name))
		if err == nil {
			return path, nil
		}
		var f *failure
		if errors.As(err, &f) && !f.NotFound && refused == nil {
			refused = err
		}
	}
	if refused != nil {
		return "", refused
	}
	return "", h.startFailed(true, errors.New("command not found"))
}

// executable gives the absolute path of a program, or says why it is none.
func (h helper) executable(path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(h.Dir, path)
	}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return "", h.startFailed(true, errors.New("command not found"))
	case err == nil && st.IsDir():
		err = syscall.EISDIR
	case err == nil:
		err = unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
	}
	if err != nil {
		return "", h.startFailed(false, bare(err))
	}
	return path, nil
}

// variable gives a variable of the command's environment.
func (h helper) variable(name string) string {
	for _, kv := range h.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// loopback brings up the loopback device of this network namespace.
func loopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("SIOCSIFFLAGS", unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r))
}
