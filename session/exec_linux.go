package session

import (
	"context"
	"encoding/gob"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
)

const (
	// killPatience is what a helper gets beyond the grace period, to end what it supervises.
	killPatience = 10 * time.Second
	// copyPatience is how long output is waited for that something which is not ours to end holds open.
	copyPatience = 5 * time.Second
)

// Process is a command that was started. Its methods may be called by any goroutine.
type Process struct {
	command Command
	helper  *exec.Cmd
	conn    net.Conn
	replies *gob.Decoder
	started time.Time
	feed    func() // starts to copy the input, if there is any to copy

	stdout, stderr *capture // nil unless the output is captured

	sendMu   sync.Mutex // guards requests
	requests *gob.Encoder

	done   chan struct{} // closed when result and err are there
	result Result
	err    error
}

// Run starts the command and waits for its end, and that of all its descendants. Errors are those of Start and of Wait.
func (c Command) Run(ctx context.Context) (Result, error) {
	p, err := c.Start(ctx)
	if err != nil {
		return Result{}, err
	}
	return p.Wait()
}

// Start starts the command. When ctx ends, the command and its descendants do. The caller must call Wait.
//
// Errors: EXEC_OPTIONS; PATH for a directory or a path of Sandbox that is not there; UNSUPPORTED where this system, or this user's rights,
// allow no namespaces; EXEC, with a StartError below, for a program that is not there or cannot be executed.
func (c Command) Start(ctx context.Context) (*Process, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, errs.Wrap(errs.Exec, op, c.Args[0], err)
	}
	l, err := c.launch()
	if err != nil {
		return nil, err
	}
	p, err := c.startHelper(ctx, l)
	var f *failure
	if errors.As(err, &f) && f.NoProc && l.Sandbox == nil {
		// A container that hides parts of /proc allows no other one. Then the descendants are ended as those of plain commands.
		l.PIDs = false
		p, err = c.startHelper(ctx, l)
	}
	if errors.As(err, &f) {
		err = f.err()
	}
	if err != nil {
		return nil, err
	}
	p.feed()
	go p.supervise(ctx)
	return p, nil
}

// launch says what the helper is to do, with symlinks resolved as the caller sees them.
func (c Command) launch() (*launch, error) {
	l := &launch{
		Args: c.Args, Env: c.environ(), Dir: c.Dir, Grace: c.Grace,
		Private: c.private(), PIDs: c.private(), Offline: c.Network == NetworkNone,
		RuntimeDir: os.Getenv("XDG_RUNTIME_DIR"),
	}
	l.User = l.Private && (c.Sandbox != nil || !may(unix.CAP_SYS_ADMIN))
	var err error
	if l.Workspace, err = directory(c.Workspace); err != nil {
		return nil, err
	}
	if l.Source, err = directory(c.Source); err != nil {
		return nil, err
	}
	if s := c.Sandbox; s != nil {
		l.Sockets = sockets()
		l.Sandbox, err = s.resolve()
	}
	return l, err
}

// sockets lists the paths of all sockets that are bound to one, as far as this network namespace knows them: the helper's may be
// another one.
func sockets() []string {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil // where none can be listed, only those in hidden directories are out of reach
	}
	var paths []string
	for line := range strings.Lines(string(b)) {
		if i := strings.Index(line, " /"); i >= 0 {
			paths = append(paths, filepath.Clean(strings.TrimSuffix(line[i+1:], "\n")))
		}
	}
	return paths
}

// directory resolves the symlinks of a path to a directory; "" stays what it is.
func directory(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", errs.Wrap(errs.Path, op, path, bare(err))
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", errs.Wrap(errs.Path, op, path, bare(err))
	}
	if !st.IsDir() {
		return "", errs.New(errs.Path, op, path, "it is not a directory")
	}
	return real, nil
}

// resolve gives s with symlinks resolved: what is to be written to or protected must be there.
func (s *Sandbox) resolve() (*Sandbox, error) {
	r := &Sandbox{}
	for _, list := range []struct{ from, to *[]string }{{&s.Write, &r.Write}, {&s.Protect, &r.Protect}} {
		for _, p := range *list.from {
			real, err := filepath.EvalSymlinks(p)
			if err != nil {
				return nil, errs.Wrap(errs.Path, op, p, bare(err))
			}
			*list.to = append(*list.to, real)
		}
	}
	for _, p := range s.Hide {
		if real, err := directory(p); err == nil {
			r.Hide = append(r.Hide, real)
		}
	}
	return r, nil
}

// startHelper starts a helper and waits until it has started the command. The error is a *failure where the helper has one.
func (c Command) startHelper(ctx context.Context, l *launch) (*Process, error) {
	p := &Process{command: c, done: make(chan struct{}), feed: func() {}}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errs.Wrap(errs.Exec, op, c.Args[0], os.NewSyscallError("socketpair", err))
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "helper"), os.NewFile(uintptr(pair[1]), "caller")
	p.conn, err = net.FileConn(ours) // a copy of it
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, errs.Wrap(errs.Exec, op, c.Args[0], err)
	}
	p.requests, p.replies = gob.NewEncoder(p.conn), gob.NewDecoder(p.conn)
	err = p.spawn(l, theirs)
	theirs.Close() // or the end of a helper that dies without an answer would never be seen
	if err != nil {
		p.conn.Close()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.helper.Process.Kill() }) // it may hang on a mount
	err = p.awaitStart(l)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return p, nil
	}
	p.conn.Close()
	_ = p.helper.Process.Kill()
	_ = p.helper.Wait() // it says no more than err
	if ctx.Err() != nil {
		return nil, errs.Wrap(errs.Exec, op, c.Args[0], context.Cause(ctx))
	}
	return nil, err
}

// spawn starts the helper: this program again, also where its file was replaced.
func (p *Process) spawn(l *launch, conn *os.File) error {
	h := exec.Command("/proc/self/exe")
	h.Args = []string{helperName}
	h.Dir = "/"
	h.ExtraFiles = []*os.File{conn}
	h.WaitDelay = copyPatience
	h.SysProcAttr = namespaces(l)
	p.helper = h
	closeInput, err := p.connect()
	if err != nil {
		return err
	}
	defer closeInput()
	if err := h.Start(); err != nil {
		if l.Private {
			return unsupported("namespaces cannot be made", bare(err))
		}
		return errs.Wrap(errs.Exec, op, p.command.Args[0], bare(err))
	}
	return nil
}

// connect gives the helper its standard streams, which the command inherits. The function closes our end of what was passed on.
//
// Input that has to be copied is not read before the command is there: a helper that fails may be followed by another one.
func (p *Process) connect() (func(), error) {
	c, h := p.command, p.helper
	h.Stdout, h.Stderr = c.Stdout, c.Stderr
	if c.Capture {
		p.stdout, p.stderr = &capture{limit: c.CaptureLimit}, &capture{limit: c.CaptureLimit}
		h.Stdout, h.Stderr = both(p.stdout, c.Stdout), both(p.stderr, c.Stderr)
	}
	if c.inherits() {
		h.Stdin = c.Stdin
		return func() {}, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errs.Wrap(errs.Exec, op, c.Args[0], err)
	}
	h.Stdin = r
	p.feed = func() {
		go func() {
			_, _ = io.Copy(w, c.Stdin) // a command need not read its input
			w.Close()
		}()
	}
	return func() { r.Close() }, nil
}

// inherits reports whether the command gets its input as it is. A regular file is not for a sandbox: who has it open can still
// change its mode and its times, past all mounts.
func (c Command) inherits() bool {
	f, ok := c.Stdin.(*os.File)
	if !ok || c.Sandbox == nil {
		return ok || c.Stdin == nil
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&(os.ModeNamedPipe|os.ModeSocket|os.ModeCharDevice) != 0
}

func both(kept *capture, w io.Writer) io.Writer {
	if w == nil {
		return kept
	}
	return io.MultiWriter(kept, w)
}

// awaitStart tells the helper what to do, and waits for its first answer.
func (p *Process) awaitStart(l *launch) error {
	var r reply
	err := p.requests.Encode(l)
	if err == nil {
		err = p.replies.Decode(&r)
	}
	switch {
	case err != nil:
		return errs.New(errs.Exec, op, p.command.Args[0], "its helper has ended: %w", err)
	case r.Failed != nil:
		return r.Failed
	}
	p.started = time.Now()
	return nil
}

// Signal sends a signal to the command, and to its process group if it has one of its own, which it has unless there is a
// terminal. It does nothing once the command has ended.
func (p *Process) Signal(s os.Signal) error {
	number, ok := s.(syscall.Signal)
	if !ok {
		return syscall.EINVAL
	}
	return p.send(request{Signal: number})
}

func (p *Process) send(r request) error {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	err := p.requests.Encode(r)
	select {
	case <-p.done:
		return nil
	default:
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) {
		return nil // it is just ending
	}
	return err
}

// Wait waits for the end of the command and of all its descendants, and may be called more than once.
//
// Errors: EXEC_TIMEOUT; EXEC if it did not end with 0 (with an ExitError below), if ctx ended (with its cause below), if its output is
// not complete (with ErrCut below), or if something could not be ended. The Result is there also then, as far as it goes.
func (p *Process) Wait() (Result, error) {
	<-p.done
	return p.result, p.err
}

// supervise ends the command in time, and finds out how it has ended.
func (p *Process) supervise(ctx context.Context) {
	defer close(p.done)
	ended := make(chan reply, 1)
	go func() {
		var r reply
		_ = p.replies.Decode(&r) // without an answer, Ended is not set
		ended <- r
	}()
	r, why := p.await(ctx, ended)
	err := p.helper.Wait()
	p.conn.Close()
	p.result.Duration = time.Since(p.started)
	p.note(r)
	p.err = p.judge(r, why, err)
}

// await waits for the end of the command, and brings it about when its time is over. It gives the reason then.
func (p *Process) await(ctx context.Context, ended <-chan reply) (r reply, why error) {
	var timeout <-chan time.Time
	if t := *p.command.Timeout; t > 0 {
		timer := time.NewTimer(t)
		defer timer.Stop()
		timeout = timer.C
	}
	name := p.command.Args[0]
	select {
	case r = <-ended:
		return r, nil
	case <-ctx.Done():
		why = errs.Wrap(errs.Exec, op, name, context.Cause(ctx))
	case <-timeout:
		why = errs.New(errs.ExecTimeout, op, name, "it ran for more than %v, and was ended", *p.command.Timeout)
	}
	_ = p.send(request{End: true}) // a helper that is gone has ended it
	select {
	case r = <-ended:
	case <-time.After(p.command.Grace + killPatience):
		_ = p.helper.Process.Kill()
		r = <-ended
	}
	return r, why
}

// note puts what the helper and the streams said into the result.
func (p *Process) note(r reply) {
	if p.stdout != nil {
		p.result.Stdout, p.result.Stderr = p.stdout.kept, p.stderr.kept
	}
	p.result.ExitCode = -1
	switch ws := syscall.WaitStatus(r.Status); {
	case !r.Ended:
	case ws.Signaled():
		p.result.Signal = ws.Signal()
	default:
		p.result.ExitCode = ws.ExitStatus()
	}
}

// judge finds the error: of several the one that explains the others.
func (p *Process) judge(r reply, why, helper error) error {
	name := p.command.Args[0]
	switch {
	case r.Ended && r.Left > 0:
		return errors.Join(why, errs.New(errs.Exec, op, name, "%d of its processes could not be ended", r.Left))
	case why != nil:
		return why
	case !r.Ended:
		return errs.New(errs.Exec, op, name, "its helper was ended: %w", errors.Join(helper, io.ErrUnexpectedEOF))
	case errors.Is(helper, exec.ErrWaitDelay):
		return errs.New(errs.Exec, op, name, "%w: something else holds it open", ErrCut)
	case p.stdout != nil && (p.stdout.cut || p.stderr.cut):
		return errs.New(errs.Exec, op, name, "%w: more than %d bytes", ErrCut, p.command.CaptureLimit)
	case !p.command.AcceptFailure && (p.result.Signal != 0 || p.result.ExitCode != 0):
		return errs.New(errs.Exec, op, name, "%w", &ExitError{p.result})
	case helper != nil:
		return errs.New(errs.Exec, op, name, "its output is not complete: %w", helper)
	}
	return nil
}
