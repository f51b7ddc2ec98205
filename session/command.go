package session

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// What a Command has unless it says otherwise.
const (
	DefaultTimeout      = 5 * time.Minute
	DefaultGrace        = 2 * time.Second
	DefaultCaptureLimit = 16 << 20 // bytes of each stream
)

// The bounds of a Command. What is beyond them is a mistake of units, not a wish.
const (
	MaxTimeout = 30 * 24 * time.Hour
	MaxGrace   = time.Hour
)

// Network is what a command may reach.
type Network string

// The networks. The empty one is NetworkHost.
const (
	NetworkHost Network = "host" // what the caller reaches
	NetworkNone Network = "none" // a loopback device of its own, and nothing else
)

// Command is a program and how it is to run. It is a value: any number of goroutines may start it, any number of times.
type Command struct {
	// Args are the program and its arguments; no shell sees them. The program is a path, relative to Dir, or a name that is looked
	// up in the command's own PATH, as the command will see the files.
	Args []string

	// Workspace is an absolute path to a directory. Empty means none: then Dir must be given.
	Workspace string

	// Source, unless it is empty, is the directory that the command finds at Workspace instead of what is there for others. Nobody but
	// the command and its descendants sees it there. Linux only.
	Source string

	// Dir is where the command starts: an absolute path as the command sees it. Empty means Workspace.
	Dir string

	// Env are K=V pairs, added to the environment of this process; the last of a name counts.
	Env []string

	// Unset are names of variables that are not passed on from the environment of this process.
	Unset []string

	// The standard streams: an *os.File is passed on, anything else is copied, nil is /dev/null. No other descriptor is passed on. Into a
	// sandbox a regular file is copied too: also what the command does not read of it is then read.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Capture keeps the output for the Result too, up to CaptureLimit bytes of each stream; 0 means DefaultCaptureLimit. What is
	// beyond is lost to the Result, and an error says so; the command itself does not notice.
	Capture      bool
	CaptureLimit int64

	// AcceptFailure makes an exit code that is not 0, or an end by a signal, no error.
	AcceptFailure bool

	// Timeout is how long the command may run: nil means DefaultTimeout, 0 for ever. At most MaxTimeout.
	Timeout *time.Duration

	// Grace is how long what is to end may take after SIGTERM, before SIGKILL; 0 means DefaultGrace. At most MaxGrace.
	Grace time.Duration

	Network Network
	Sandbox *Sandbox // nil means none
}

// Sandbox lets a command change only Workspace, /tmp, a /dev/shm of its own, and what Write names; all else is read-only to it, for
// its descendants too. It may use the devices null, zero, full, random, urandom and tty, and terminals of its own; no others.
// /run and the directory that XDG_RUNTIME_DIR names are empty to it, and no socket that there is outside of Workspace leads anywhere, unless Write names
// it. It runs without the rights of root over the system, gains none by setuid programs, and sees no process but its own. Linux only.
type Sandbox struct {
	// Write are absolute paths, of directories or files, which must exist. What is mounted below one stays read-only, unless
	// it is named too.
	Write []string

	// Protect are absolute paths that stay read-only although they are below a path that can be written to. Where a Source stands
	// at Workspace, what is there for others is protected without being named, under every path that leads to it.
	Protect []string

	// Hide are absolute paths of directories that are to be empty and read-only, as sockets can be used on a read-only mount too.
	// What does not exist, or is something else, is passed over.
	Hide []string
}

// Result is how a command ended.
type Result struct {
	ExitCode int            // -1 if a signal ended it
	Signal   syscall.Signal // that ended it; 0 if none did
	Duration time.Duration

	// What it wrote, if it was to be captured.
	Stdout, Stderr []byte
}

// ShellCode gives the exit code that a shell would show: 128 and the number of the signal for a command that one has ended.
func (r Result) ShellCode() int {
	if r.Signal != 0 {
		return 128 + int(r.Signal)
	}
	return r.ExitCode
}

// ExitError is below the EXEC error of a command that did not end with 0.
type ExitError struct{ Result Result }

func (e *ExitError) Error() string {
	if s := e.Result.Signal; s != 0 {
		return "it was ended by " + s.String()
	}
	return "it ended with exit code " + strconv.Itoa(e.Result.ExitCode)
}

// StartError is below the EXEC error of a command that could not be started.
type StartError struct {
	NotFound bool // there is no such program: a shell's exit code 127; else it cannot be executed, which is 126
	Err      error
}

func (e *StartError) Error() string { return e.Err.Error() }

func (e *StartError) Unwrap() error { return e.Err }

// ErrCut is below the EXEC error of a command that wrote more than was to be captured. The Result has what came first.
var ErrCut = errors.New("its output is not complete")

// op names what fails in this package's errors.
const op = "exec"

// invalid is the error of an option.
func invalid(option, format string, args ...any) error {
	return errs.New(errs.ExecOptions, op, option, format, args...)
}

// complete gives c with its defaults in place, or says what is wrong with it.
func (c Command) complete() (Command, error) {
	if c.Dir == "" {
		c.Dir = c.Workspace
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	if c.CaptureLimit == 0 {
		c.CaptureLimit = DefaultCaptureLimit
	}
	if c.Timeout == nil {
		c.Timeout = new(DefaultTimeout)
	}
	if c.Network == "" {
		c.Network = NetworkHost
	}
	return c, c.check()
}

// check looks at the options alone, not at files.
func (c Command) check() error {
	switch t := *c.Timeout; {
	case len(c.Args) == 0 || c.Args[0] == "":
		return invalid("", "no program is named")
	case t < 0:
		return invalid("timeout", "%v is negative", t)
	case t > MaxTimeout:
		return invalid("timeout", "%v is more than %v", t, MaxTimeout)
	case c.Grace < 0 || c.Grace > MaxGrace:
		return invalid("grace", "%v is not between 0 and %v", c.Grace, MaxGrace)
	case c.CaptureLimit < 0:
		return invalid("capture limit", "%d is negative", c.CaptureLimit)
	case c.Network != NetworkHost && c.Network != NetworkNone:
		return invalid("network", "%q is none of host, none", c.Network)
	case c.Source != "" && c.Workspace == "":
		return invalid("source", "there is no workspace that it could stand at")
	case c.Sandbox != nil && c.Workspace == "":
		return invalid("sandbox", "there is no workspace that it could be around")
	case c.Dir == "":
		return invalid("dir", "neither it nor a workspace is given")
	}
	if err := c.checkEnv(); err != nil {
		return err
	}
	return c.checkPaths()
}

func (c Command) checkEnv() error {
	for _, a := range c.Args {
		if strings.ContainsRune(a, 0) {
			return invalid("arguments", "%q has a NUL", a)
		}
	}
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsRune(kv, 0) {
			return invalid("env", "%q is not NAME=VALUE", kv)
		}
	}
	return nil
}

func (c Command) checkPaths() error {
	paths := []string{c.Dir}
	for _, p := range []string{c.Workspace, c.Source} {
		if p != "" {
			paths = append(paths, p)
		}
	}
	if s := c.Sandbox; s != nil {
		paths = slices.Concat(paths, s.Write, s.Protect, s.Hide)
	}
	for _, p := range paths {
		if !filepath.IsAbs(p) || strings.ContainsRune(p, 0) {
			return errs.New(errs.Path, op, p, "it is not an absolute path")
		}
	}
	return nil
}

// environ gives the command's environment: of each name the last value.
func (c Command) environ() []string {
	ours := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(c.Unset, name)
	})
	all := slices.Concat(ours, []string{"PWD=" + c.Dir}, c.Env)
	last := make(map[string]int, len(all))
	for i, kv := range all {
		name, _, _ := strings.Cut(kv, "=")
		last[name] = i
	}
	var env []string
	for i, kv := range all {
		name, _, _ := strings.Cut(kv, "=")
		if last[name] == i {
			env = append(env, kv)
		}
	}
	return env
}

// private reports whether the command needs namespaces of its own.
func (c Command) private() bool {
	return c.Source != "" || c.Sandbox != nil || c.Network == NetworkNone
}
