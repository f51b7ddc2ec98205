package session

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// Start says what Open does where no daemon answers for a workspace.
type Start string

// The ways to start.
const (
	StartDaemon    Start = ""           // a daemon is started, by the program hyperfs: it mounts the workspace, or serves it without a mount
	StartInProcess Start = "in-process" // this process opens the workspace itself, with the backend scan
	StartNothing   Start = "nothing"    // Open fails
)

// Backends of a workspace.
const (
	BackendAuto = "auto" // the one that made the store; for a new one fuse where that can be had, else scan
	BackendFuse = checkpoint.BackendFuse
	BackendScan = checkpoint.BackendScan
)

// Config says what to open and how. Only Workspace is required. All but that and Start is for what Open starts: a daemon that answers already stays as
// it was started.
type Config struct {
	Workspace string // an existing directory

	Start      Start
	Program    string // hyperfs; "" means the one in $PATH
	KeepDaemon bool   // Close does not end a daemon that Open has started

	Mountpoint     string // "" means the workspace itself; needs the backend fuse
	Store          string // "" means <workspace>/.hyperfs
	Backend        string // "" means BackendAuto; StartInProcess has scan alone
	Tier           string // a strategy.Kind; "" means auto
	NoTmpfs        bool   // auto does not take the tier tmpfs
	TmpfsDir       string // where that keeps preimages; "" means below /dev/shm
	Hot            overlay.HotConfig
	MaxCheckpoints int  // active ones, at most; 0 means 1024
	Sync           bool // preimages survive power loss
	AllowOther     bool // other users may enter the mount

	Ignore        []string // patterns of paths that have no history, as lines of a .gitignore at the root
	StrictIgnored bool     // writes to these fail with EROFS; needs the backend fuse
}

// complete makes paths absolute and checks the options.
func (c *Config) complete() error {
	if err := c.resolve(); err != nil {
		return err
	}
	for _, path := range []*string{&c.Store, &c.Mountpoint, &c.TmpfsDir} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return errs.Wrap(errs.Path, opOpen, *path, err)
		}
		*path = abs
	}
	if c.Backend == "" {
		c.Backend = BackendAuto
	}
	return c.check()
}

// opOpen names what fails.
const opOpen = "open session"

// resolve resolves the symlinks of the workspace. A mount whose daemon died can be looked at only from outside.
func (c *Config) resolve() error {
	if c.Workspace == "" || strings.ContainsRune(c.Workspace, 0) {
		return errs.New(errs.Path, opOpen, c.Workspace, "no workspace is named")
	}
	abs, err := filepath.Abs(c.Workspace)
	if err != nil {
		return errs.Wrap(errs.Path, opOpen, c.Workspace, err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if isDead(err) {
		real, err = filepath.EvalSymlinks(filepath.Dir(abs))
		real = filepath.Join(real, filepath.Base(abs))
	} else if err == nil {
		err = mustBeDir(real)
	}
	if err != nil {
		return errs.Wrap(errs.Path, opOpen, c.Workspace, withoutPath(err))
	}
	c.Workspace = real
	return nil
}

func mustBeDir(path string) error {
	st, err := os.Stat(path)
	if err == nil && !st.IsDir() {
		err = errors.New("it is not a directory")
	}
	if isDead(err) {
		return nil
	}
	return err
}

// withoutPath drops the path that an error of package os repeats.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (c *Config) check() error {
	switch c.Start {
	case StartDaemon, StartInProcess, StartNothing:
	default:
		return errs.New(errs.Usage, opOpen, "Start", "%q is none", string(c.Start))
	}
	switch c.Backend {
	case BackendAuto, BackendFuse, BackendScan:
	default:
		return errs.New(errs.Usage, opOpen, "Backend", "%q is none of auto, fuse, scan", c.Backend)
	}
	switch {
	case c.MaxCheckpoints < 0:
		return errs.New(errs.Usage, opOpen, "MaxCheckpoints", "%d is negative", c.MaxCheckpoints)
	case c.Hot.FileBytes < 0 || c.Hot.TotalBytes < 0 || c.Hot.Files < 0:
		return errs.New(errs.Usage, opOpen, "Hot", "a limit is negative")
	case c.Start == StartInProcess && c.Backend == BackendFuse:
		return errs.New(errs.Unsupported, opOpen, "Backend", "a process can't serve a mount that it uses itself").
			WithHint("leave Start out, and a daemon has the mount")
	case c.Mountpoint != "" && (c.Start == StartInProcess || c.Backend == BackendScan):
		return errs.New(errs.Usage, opOpen, "Mountpoint", "without the backend fuse nothing is mounted")
	}
	return nil
}

// overlay gives what a workspace is opened with.
func (c *Config) overlay() overlay.Config {
	return overlay.Config{
		Workspace: c.Workspace, Store: c.Store, Tier: c.Tier, NoTmpfs: c.NoTmpfs, TmpfsDir: c.TmpfsDir,
		MaxCheckpoints: c.MaxCheckpoints, Hot: c.Hot, Sync: c.Sync,
		Ignore: c.Ignore, StrictIgnored: c.StrictIgnored,
	}
}
