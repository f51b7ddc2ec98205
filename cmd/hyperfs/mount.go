package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/turn"
	"github.com/hyperfs/hyperfs/strategy"
)

func mountCommand() *cli.Command {
	return &cli.Command{
		Name:      "mount",
		Usage:     "protect a directory: mount it over itself and start its daemon",
		UsageText: "hyperfs mount [flags] [DIR]\nhyperfs mount --branch NAME --at MOUNTPOINT [DIR]",
		Description: example("It returns when the mount answers. A mount that a dead daemon left is replaced.\n"+
			"With --branch it shows a branch of a workspace that is mounted already at another path too. That goes with unmount MOUNTPOINT, and\n"+
			"with the workspace's own mount. The same directory is at .hyperfs/branches/NAME in the mount.",
			"hyperfs mount", "hyperfs mount --at /mnt/project ~/project", "hyperfs mount --branch fix-1 --at /mnt/fix-1 ~/project"),
		Flags: append(mountFlags(),
			&cli.StringFlag{Name: "at", EnvVars: []string{"HYPERFS_MOUNTPOINT"}, Usage: "mount at `MOUNTPOINT` instead of over the workspace"},
			&cli.StringFlag{Name: "branch", Usage: "show the branch `NAME` at MOUNTPOINT"},
			&cli.BoolFlag{Name: "foreground", Aliases: []string{"f"}, Usage: "stay in the foreground and log to stderr too"},
			&cli.Uint64Flag{Name: readyFlag, Hidden: true, Usage: "report to this descriptor when the mount answers"},
			jsonFlag()),
		Action: arguments(0, 1, mount),
	}
}

func unmountCommand() *cli.Command {
	return &cli.Command{
		Name:        "unmount",
		Usage:       "make the workspace an ordinary directory again and end its daemon",
		UsageText:   "hyperfs unmount [--lazy | --force] [DIR]",
		Description: example("Checkpoints stay in the store, and the next mount has them.", "hyperfs unmount", "hyperfs unmount --lazy ~/project"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "lazy", Usage: "also while files are open: they can be used until they are closed, and the daemon ends then"},
			&cli.BoolFlag{Name: "force", Usage: "also while files are open: they cannot be used any more"},
			jsonFlag(),
		},
		Action: arguments(0, 1, unmount),
	}
}

// envKeepTurns is read by commands without a daemon too.
const envKeepTurns = "HYPERFS_KEEP_TURNS"

// keptTurns gives what control.Options take for a number of turns, of which 0 means all.
func keptTurns(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// keptTurnsHere gives it for a command that opens the workspace itself.
func keptTurnsHere() int {
	n, err := strconv.Atoi(os.Getenv(envKeepTurns))
	if err != nil || n < 0 {
		return turn.DefaultKeep
	}
	return keptTurns(n)
}

// tiers are the values of --tier.
var tiers = tierNames()

func tierNames() []string {
	names := []string{string(strategy.Auto)}
	for _, k := range strategy.Kinds() {
		names = append(names, string(k))
	}
	return names
}

// storeFlags say how the daemon keeps checkpoints, whatever it shows of the workspace.
func storeFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "store", EnvVars: []string{envStore}, Usage: "keep checkpoints in `DIR` instead of .hyperfs in the workspace; on the same filesystem"},
		&cli.StringFlag{Name: "tier", EnvVars: []string{"HYPERFS_TIER"}, Value: "auto", Usage: "how preimages are kept: " + strings.Join(tiers, ", ")},
		&cli.IntFlag{Name: "max-checkpoints", EnvVars: []string{"HYPERFS_MAX_CHECKPOINTS"}, Value: 1024, Usage: "how many may be active"},
		&cli.IntFlag{Name: "keep-turns", EnvVars: []string{envKeepTurns}, Value: turn.DefaultKeep, Usage: "how many completed turns of each conversation are kept; 0 means all"},
		&cli.BoolFlag{Name: "no-durable-journals", EnvVars: []string{"HYPERFS_NO_DURABLE_JOURNALS"}, Usage: "checkpoints end with the daemon; branches stay"},
		&cli.BoolFlag{Name: "sync", EnvVars: []string{"HYPERFS_SYNC"}, Usage: "preimages survive power loss"},
		&cli.BoolFlag{Name: "debug", EnvVars: []string{"HYPERFS_DEBUG"}, Usage: "log every request"},
	}, ignoreFlags()...)
}

// mountFlags are those of mount that run has too.
func mountFlags() []cli.Flag {
	return append([]cli.Flag{backendFlag()}, append(storeFlags(),
		&cli.BoolFlag{Name: "no-tmpfs", EnvVars: []string{"HYPERFS_NO_TMPFS"}, Usage: "the tier auto never keeps preimages in RAM"},
		&cli.StringFlag{Name: "tmpfs-dir", EnvVars: []string{"HYPERFS_TMPFS_DIR"}, Usage: "keep preimages in RAM below `DIR`, on a tmpfs (default: below /dev/shm)"},
		&cli.BoolFlag{Name: "allow-other", EnvVars: []string{"HYPERFS_ALLOW_OTHER"}, Usage: "other users may enter the mount"},
		&cli.BoolFlag{Name: "no-xattrs", EnvVars: []string{"HYPERFS_NO_XATTRS"}, Usage: "show programs no extended attributes and no ACLs, for which the kernel asks at each first write to a file; those that files have stay"},
		&cli.BoolFlag{Name: "passthrough", EnvVars: []string{"HYPERFS_PASSTHROUGH"}, Usage: "serve files past the daemon where the kernel lets us: large ones are written faster, and each open of any costs a request"},
		&cli.BoolFlag{Name: "no-passthrough", EnvVars: []string{"HYPERFS_NO_PASSTHROUGH"}, Usage: "read and write through the daemon also where the kernel asks for opens anyway, as with --at"},
		&cli.BoolFlag{Name: "open-requests", EnvVars: []string{"HYPERFS_OPEN_REQUESTS"}, Usage: "have the kernel ask for each open of a file even where it could open files by itself"},
		&cli.BoolFlag{Name: "no-uring", EnvVars: []string{"HYPERFS_NO_URING"}, Usage: "take requests from /dev/fuse even where opens are asked for and the kernel has FUSE over io_uring switched on"},
		&cli.BoolFlag{Name: "no-near-reader", EnvVars: []string{"HYPERFS_NO_NEAR_READER"}, Usage: "do not have who answers a program's requests run on its CPU"},
		&cli.BoolFlag{Name: "no-single-reader", EnvVars: []string{"HYPERFS_NO_SINGLE_READER"}, Usage: "have several threads wait for requests on /dev/fuse at all times"},
		&cli.BoolFlag{Name: "no-inotify", EnvVars: []string{"HYPERFS_NO_INOTIFY"}, Usage: "tell programs that watch files nothing of what a rollback, an undo or a merge changes"},
		&cli.BoolFlag{Name: "no-hot", EnvVars: []string{"HYPERFS_NO_HOT"}, Usage: "no hot buffer: small preimages go to the tier too"},
		&cli.Int64Flag{Name: "hot-file-bytes", EnvVars: []string{"HYPERFS_HOT_FILE_BYTES"}, Value: strategy.DefaultHotLimits.FileBytes, Usage: "how large a preimage in the hot buffer may be; 0 turns it off"},
		&cli.Int64Flag{Name: "hot-total-bytes", EnvVars: []string{"HYPERFS_HOT_TOTAL_BYTES"}, Value: strategy.DefaultHotLimits.TotalBytes, Usage: "how much of the hot buffer may not be on the disk yet; 0 turns it off"},
		&cli.IntFlag{Name: "hot-files", EnvVars: []string{"HYPERFS_HOT_FILES"}, Value: strategy.DefaultHotLimits.Files, Usage: "how many preimages in it may not be on the disk yet; 0 turns it off"},
		&cli.Int64Flag{Name: "large-min", Hidden: true, EnvVars: []string{"HYPERFS_LARGE_MIN"}, Usage: "for tests: keep files of more than `BYTES` block by block"},
		&cli.Int64Flag{Name: "block-size", Hidden: true, EnvVars: []string{"HYPERFS_BLOCK_SIZE"}, Usage: "for tests: `BYTES` of such a block"},
	)...)
}

// mountOptions are the flags of mount, checked.
type mountOptions struct {
	Workspace      string // absolute, symlinks resolved
	Mountpoint     string // absolute, symlinks resolved; the workspace itself if in place
	Store          string // absolute; "" means in the workspace
	Tier           string
	NoTmpfs        bool
	TmpfsDir       string // absolute; "" means below /dev/shm
	Hot            overlay.HotConfig
	MaxCheckpoints int
	KeepTurns      int // 0 means all
	NoJournals     bool
	Ignore         []string
	StrictIgnored  bool
	Sync           bool
	AllowOther     bool
	NoXattrs       bool
	Passthrough    bool
	NoPassthrough  bool
	OpenRequests   bool
	NoURing        bool
	NoNearReader   bool
	NoSingleReader bool
	NoInotify      bool
	Debug          bool
	Served         bool // without a mount, by the backend scan

	LargeMin, BlockSize int64 // bytes; 0 means overlay's
}

// mountOptionsOf reads the flags for the workspace dir, and cleans up what a dead daemon left there.
func mountOptionsOf(c *cli.Context, dir string) (o mountOptions, err error) {
	o = mountOptions{
		Tier:           c.String("tier"),
		NoTmpfs:        c.Bool("no-tmpfs"),
		Hot:            hotConfigOf(c),
		MaxCheckpoints: c.Int("max-checkpoints"),
		KeepTurns:      c.Int("keep-turns"),
		NoJournals:     c.Bool("no-durable-journals"),
		StrictIgnored:  c.Bool("strict-ignored"),
		Sync:           c.Bool("sync"),
		AllowOther:     c.Bool("allow-other"),
		NoXattrs:       c.Bool("no-xattrs"),
		Passthrough:    c.Bool("passthrough"),
		NoPassthrough:  c.Bool("no-passthrough"),
		OpenRequests:   c.Bool("open-requests"),
		NoURing:        c.Bool("no-uring"),
		NoNearReader:   c.Bool("no-near-reader"),
		NoSingleReader: c.Bool("no-single-reader"),
		NoInotify:      c.Bool("no-inotify"),
		Debug:          c.Bool("debug"),
		LargeMin:       c.Int64("large-min"),
		BlockSize:      c.Int64("block-size"),
	}
	if h := o.Hot; h.FileBytes < 0 || h.TotalBytes < 0 || h.Files < 0 {
		return o, errs.New(control.Usage, "mount", "--hot-file-bytes, --hot-total-bytes, --hot-files", "a limit is negative")
	}
	if o.MaxCheckpoints <= 0 {
		return o, errs.New(control.Usage, "mount", "--max-checkpoints", "%d is not positive", o.MaxCheckpoints)
	}
	if o.KeepTurns < 0 {
		return o, errs.New(control.Usage, "mount", "--keep-turns", "%d is negative", o.KeepTurns)
	}
	if !slices.Contains(tiers, o.Tier) {
		return o, errs.New(control.Usage, "mount", "--tier", "%q is none", o.Tier).WithHint(strings.Join(tiers, ", "))
	}
	if o.Ignore, err = ignoreOf(c); err != nil {
		return o, err
	}
	at, err := given(c, "at")
	if err != nil {
		return o, err
	}
	store, err := given(c, "store")
	if err != nil {
		return o, err
	}
	if o.Workspace, err = directory(c.Context, dir); err != nil {
		return o, err
	}
	o.Mountpoint = o.Workspace
	if at != "" {
		if at, err = absolute(c, at); err != nil {
			return o, err
		}
		if o.Mountpoint, err = directory(c.Context, at); err != nil {
			return o, err
		}
	}
	if store != "" {
		if o.Store, err = absolute(c, store); err != nil {
			return o, err
		}
	}
	return o, o.setTmpfsDir(c)
}

// hotConfigOf reads the flags of the hot buffer.
func hotConfigOf(c *cli.Context) overlay.HotConfig {
	h := overlay.HotConfig{FileBytes: c.Int64("hot-file-bytes"), TotalBytes: c.Int64("hot-total-bytes"), Files: c.Int("hot-files")}
	h.Off = c.Bool("no-hot") || h.FileBytes == 0 || h.TotalBytes == 0 || h.Files == 0
	return h
}

func (o *mountOptions) setTmpfsDir(c *cli.Context) error {
	dir, err := given(c, "tmpfs-dir")
	if err != nil || dir == "" {
		return err
	}
	o.TmpfsDir, err = absolute(c, dir)
	return err
}

// directory resolves dir, takes a dead mount away from it, and makes sure that it is a directory.
func directory(ctx context.Context, dir string) (string, error) {
	real, err := resolve(dir)
	if err != nil {
		return "", errs.Wrap(control.Path, "mount", dir, cause(err))
	}
	if err := noDaemon(ctx, real); err != nil {
		return "", err
	}
	if err := cleanDeadMount(real); err != nil {
		return "", err
	}
	if isMounted(real) {
		return "", foreignMount(real)
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", errs.Wrap(control.Path, "mount", real, cause(err))
	}
	if !st.IsDir() {
		return "", errs.New(control.Path, "mount", real, "it is not a directory")
	}
	return real, nil
}

// noDaemon fails where a daemon answers for dir. One whose mount is gone is about to end, and is waited for.
func noDaemon(ctx context.Context, dir string) error {
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(lockRetry) {
		client, err := control.Dial(ctx, dir)
		if err != nil {
			return nil
		}
		s, err := client.Status(ctx)
		client.Close()
		served := err == nil && s.Daemon.Mountpoint == ""
		ending := err != nil || !served && !s.Daemon.Detached && !isMounted(s.Daemon.Mountpoint)
		switch {
		case served:
			return errs.New(control.Busy, "mount", dir, "process %d answers for it already, without a mount", s.Daemon.PID).WithHint("hyperfs unmount ends it")
		case ending && time.Now().Before(deadline):
		case err == nil && s.Daemon.Detached:
			return errs.New(control.Busy, "mount", dir, "its last mount is detached, but a program still uses it").
				WithHint("end the program, or hyperfs unmount --force")
		default:
			return errs.New(control.Busy, "mount", dir, "it is mounted already").WithHint("hyperfs status")
		}
	}
}

func (o mountOptions) inPlace() bool { return o.Mountpoint == o.Workspace }

// storeDir gives where the store is.
func (o mountOptions) storeDir() string {
	if o.Store != "" {
		return o.Store
	}
	return filepath.Join(o.Workspace, overlay.StoreName)
}

func (o mountOptions) config() overlay.Config {
	return overlay.Config{Workspace: o.Workspace, Store: o.Store, Tier: o.Tier, NoTmpfs: o.NoTmpfs, TmpfsDir: o.TmpfsDir, Hot: o.Hot,
		MaxCheckpoints: o.MaxCheckpoints, NoJournals: o.NoJournals, Ignore: o.Ignore, StrictIgnored: o.StrictIgnored, Sync: o.Sync, LargeMin: o.LargeMin, BlockSize: o.BlockSize}
}

func mount(c *cli.Context) error {
	if c.IsSet("branch") {
		return mountBranch(c)
	}
	dir, err := named(c)
	if err != nil {
		return err
	}
	o, err := mountOptionsOf(c, dir)
	if err != nil {
		return err
	}
	if err := nothingToMount(c, o); err != nil {
		return err
	}
	return start(c, o, "mounting")
}

// start becomes the daemon, in the background if it was started as that, or starts one and says what there is then. doing is what the user
// is told meanwhile.
func start(c *cli.Context, o mountOptions, doing string) error {
	switch {
	case c.IsSet(readyFlag):
		return daemonMain(o, uintptr(c.Uint64(readyFlag)))
	case c.Bool("foreground"):
		return serveForeground(c, o)
	}
	done := progress(c, doing)
	err := startDaemon(c.Context, o)
	done()
	if err != nil {
		return err
	}
	return reportMount(c, o)
}

// reportMount says what was mounted.
func reportMount(c *cli.Context, o mountOptions) error {
	if flagAnywhere(c, "json") {
		client, err := control.Dial(c.Context, o.Workspace)
		if err != nil {
			return err
		}
		defer client.Close()
		s, err := client.Status(c.Context)
		if err != nil {
			return err
		}
		return printJSON(c.App.Writer, s)
	}
	fmt.Fprintln(c.App.ErrWriter, o.pick("mounted "+quote(o.Mountpoint), "a daemon answers for "+quote(o.Workspace)))
	if dir, err := os.Getwd(); err == nil && o.inPlace() && within(o.Mountpoint, dir) {
		fmt.Fprintln(c.App.ErrWriter, `this shell still stands in the directory underneath: cd "$PWD" enters the mount`)
	}
	return nil
}

// within reports whether dir, whose symlinks may lead there, is root or below it.
func within(root, dir string) bool {
	dir, err := resolve(dir)
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(root, dir)
	return err == nil && filepath.IsLocal(rel)
}

func unmount(c *cli.Context) error {
	if c.Bool("lazy") && c.Bool("force") {
		return errs.New(control.Usage, "unmount", "", "only one of --lazy, --force")
	}
	p, err := mountedPlace(c)
	if err != nil {
		return err
	}
	if name, _ := boundBranch(p.dir); name != "" && p.socket == "" && !isDeadMount(p.dir) {
		return unmountBranch(c, p.dir, name)
	}
	if p.socket == "" {
		return unmountDead(c, p.dir)
	}
	// Our own current directory must not keep the mount busy.
	if err := os.Chdir(neutralDir()); err != nil {
		return errs.Wrap(control.Internal, "unmount", p.dir, cause(err))
	}
	client := control.NewClient(p.socket)
	defer client.Close()
	done := progress(c, "unmounting")
	r, err := client.Unmount(c.Context, control.UnmountOptions{Lazy: c.Bool("lazy"), Force: c.Bool("force")})
	done()
	if err != nil {
		return err
	}
	if flagAnywhere(c, "json") {
		return printJSON(c.App.Writer, r)
	}
	if r.Ended {
		fmt.Fprintf(c.App.ErrWriter, "unmounted %s\n", quote(r.Workspace))
	} else {
		fmt.Fprintf(c.App.ErrWriter, "detached %s: its daemon ends when the last open file is closed\n", quote(r.Workspace))
	}
	return nil
}

// mountedPlace finds what to unmount: the directory that is named, or the workspace around the current one.
func mountedPlace(c *cli.Context) (place, error) {
	if c.Args().Len() == 0 {
		p, err := find(c.Context, c)
		var e *control.Error
		if errors.As(err, &e) && e.Code == control.Busy {
			return place{dir: e.On}, nil // a dead mount
		}
		return p, err
	}
	dir, err := named(c)
	if err != nil {
		return place{}, err
	}
	real, err := resolve(dir)
	if err != nil {
		return place{}, errs.Wrap(control.Path, "unmount", dir, cause(err))
	}
	socket, err := control.FindSocket(c.Context, real)
	if err != nil && control.CodeOf(err) != control.NotFound {
		return place{}, err
	}
	return place{dir: real, socket: socket}, nil
}

// unmountDead takes away the mount of a daemon that died.
func unmountDead(c *cli.Context, dir string) error {
	if !isDeadMount(dir) {
		return errs.New(control.NotFound, "unmount", dir, "it is not mounted")
	}
	if err := cleanDeadMount(dir); err != nil {
		return err
	}
	if flagAnywhere(c, "json") {
		return printJSON(c.App.Writer, control.UnmountReply{Workspace: dir, Ended: true})
	}
	fmt.Fprintf(c.App.ErrWriter, "unmounted %s, whose daemon had died\n", quote(dir))
	return nil
}
