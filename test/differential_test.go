package test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// The environment variables of the differential test.
const (
	envReplay = "HYPERFS_REPLAY" // a log to execute instead of random operations
	envLogs   = "HYPERFS_LOGS"   // where logs of failures go; the temporary directory if unset
)

// sequenceSteps is how many operations one workspace lives through, on average.
const sequenceSteps = 120

// lower is a filesystem to test on.
type lower struct {
	name  string
	share int // percent of all steps
	mount func(t *testing.T) string
	tier  string // "" is auto
	// fill puts content into a workspace before anything else happens; nil means an empty one.
	fill func(dir string) error
	// overlay puts an overlayfs on it for each workspace, whose lower layer has what fill makes.
	overlay bool
}

// lowers are the filesystems of the differential test.
var lowers = []lower{
	{name: "temp", share: 20, mount: func(t *testing.T) string { return t.TempDir() }, fill: seedTree},
	{name: "ext4", share: 15, mount: func(t *testing.T) string { return testfs.Ext4(t, 512<<20) }, tier: "posix-link"},
	{name: "tmpfs", share: 20, mount: func(t *testing.T) string { return testfs.Tmpfs(t, 1<<30) }, tier: "pure-manifest", fill: seedTree},
	{name: "xfs", share: 15, mount: func(t *testing.T) string { return testfs.XFS(t, 512<<20) }, fill: seedTree},
	{name: "btrfs", share: 15, mount: func(t *testing.T) string { return testfs.Btrfs(t, 512<<20) }, fill: seedTree},
	{name: "overlayfs", share: 15, mount: func(t *testing.T) string { return testfs.Tmpfs(t, 1<<30) }, fill: seedTree, overlay: true},
}

// seedTree makes something for the first operations to work on.
func seedTree(dir string) error {
	r := rand.New(rand.NewPCG(1, 2))
	fs, err := ops.OpenDirFS(dir)
	if err != nil {
		return err
	}
	defer fs.Close()
	x := ops.NewExecutor(fs)
	var v ops.View
	for i := range 40 {
		path := ops.Bytes(fmt.Sprintf("old-%d", i))
		if len(v.Dirs) > 0 && i%3 > 0 {
			path = ops.Bytes(v.Dirs[r.IntN(len(v.Dirs))]) + "/" + path
		}
		o := ops.Op{Kind: ops.Create, Path: path, Mode: 0o644, Len: int64(r.IntN(9000)), Seed: uint64(i)}
		if i%4 == 0 {
			o.Kind, o.Mode = ops.Mkdir, 0o755
			v.Dirs = append(v.Dirs, string(path))
		}
		if err := x.Apply(o); err != nil {
			return err
		}
	}
	return nil
}

// property is one differential test: how to make the subject, and what operations to make.
type property struct {
	lower
	open func(workspace string, variant uint32) (subject, error)
	gen  func() *ops.Generator
}

// variants is how many ways there are to make a subject.
const variants = 8

func everything() *ops.Generator {
	return &ops.Generator{Root: os.Getuid() == 0, Checkpoints: true, Explain: true}
}

func TestDifferentialTreeIsLikeAPlainDirectory(t *testing.T) {
	for _, l := range lowers {
		t.Run(l.name, func(t *testing.T) {
			property{lower: l, gen: everything, open: openTree(l.tier)}.run(t)
		})
	}
}

// openTree makes a workspace without a mount.
func openTree(tier string) func(ws string, variant uint32) (subject, error) {
	return func(ws string, variant uint32) (subject, error) {
		names := treefs.Options{KeepNames: variant&1 != 0, Direct: variant&2 != 0}
		o := treeOptions{Options: names, Tier: tier, Large: variant&4 != 0}
		if variant&3 == 0 || variant&3 == 3 { // with either value of both
			o.Tier += " hot"
		}
		return newTreeSubject(ws, o)
	}
}

func TestDifferentialMountIsLikeAPlainDirectory(t *testing.T) {
	needMount(t)
	for _, l := range lowers {
		t.Run(l.name, func(t *testing.T) {
			l.share = max(l.share/7, 1)
			gen := func() *ops.Generator {
				g := everything()
				g.NoShift = true
				return g
			}
			p := property{lower: l, gen: gen, open: func(ws string, variant uint32) (subject, error) {
				var o mountOptions
				o.flags = append(o.flags, opensFlags(variant)...)
				if variant&4 != 0 {
					o.flags = append(o.flags, "--large-min", strconv.Itoa(lowLargeMin), "--block-size", strconv.Itoa(lowBlockSize))
				}
				if l.tier != "" {
					o.flags = append(o.flags, "--tier", l.tier)
				}
				return newMountSubject(ws, o)
			}}
			p.run(t)
		})
	}
}

// Without extended attributes everything else is as on a plain directory.
func TestDifferentialMountWithoutXattrsIsLikeAPlainDirectory(t *testing.T) {
	needMount(t)
	l := lowers[0]
	l.name, l.share = "without-xattrs", 5
	gen := func() *ops.Generator {
		g := everything()
		g.NoShift, g.NoXattrs = true, true
		return g
	}
	p := property{lower: l, gen: gen, open: func(ws string, variant uint32) (subject, error) {
		return newMountSubject(ws, mountOptions{flags: append(opensFlags(variant), "--no-xattrs")})
	}}
	p.run(t)
}

// chooser lets rapid choose, which can shrink what it chose.
type chooser struct{ t *rapid.T }

// Intn implements ops.Chooser.
func (c chooser) Intn(label string, n int) int { return rapid.IntRange(0, n-1).Draw(c.t, label) }

// run executes the property for its share of the steps, and minimises what it finds.
func (p property) run(t *testing.T) {
	base := p.mount(t)
	if log := os.Getenv(envReplay); log != "" {
		p.replay(t, base, log)
		return
	}
	setFlag(t, "rapid.checks", steps(t, p.share)/sequenceSteps)
	setFlag(t, "rapid.steps", sequenceSteps)
	log := p.logName()
	given := flag.Lookup("rapid.seed").Value.String() != "0"
	repeat(t, p.share, func() {
		if !given {
			setFlag(t, "rapid.seed", int(seed(t)))
			defer setFlag(t, "rapid.seed", 0)
		}
		t.Run("random", func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { p.sequence(t, base, log) })
		})
	})
	if t.Failed() {
		p.minimise(t, base, log)
		return
	}
	_ = os.Remove(log)
}

// logName gives the file that operations are logged to before they are executed.
func (p property) logName() string {
	return filepath.Join(logDir(), fmt.Sprintf("hyperfs-ops-%s-%d.jsonl", p.name, os.Getpid()))
}

func setFlag(t *testing.T, name string, n int) {
	t.Helper()
	if err := flag.Set(name, strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
}

func logDir() string {
	if dir := os.Getenv(envLogs); dir != "" {
		return dir
	}
	return os.TempDir()
}

// newWorld makes a world in a directory of its own below base.
func (p property) newWorld(base string, variant uint32) (*world, error) {
	dir, err := os.MkdirTemp(base, "world-")
	if err != nil {
		return nil, err
	}
	open := func(ws string) (subject, error) { return p.open(ws, variant) }
	if p.overlay {
		return p.newOverlayWorld(dir, open)
	}
	if err := p.newWorkspace(dir); err != nil {
		return nil, err
	}
	return newWorld(dir, open)
}

// newWorkspace makes a workspace with content in dir.
func (p property) newWorkspace(dir string) error {
	ws := filepath.Join(dir, "workspace")
	if err := os.Mkdir(ws, 0o755); err != nil || p.fill == nil {
		return err
	}
	return p.fill(ws)
}

// newOverlayWorld makes a world on an overlayfs.
func (p property) newOverlayWorld(dir string, open func(string) (subject, error)) (*world, error) {
	merged, done, err := p.mountOverlay(dir)
	if err != nil {
		return nil, err
	}
	w, err := newWorld(merged, open)
	if w != nil {
		w.refuse, w.done = refusedByOverlay, done
	}
	return w, err
}

// mountOverlay mounts an overlayfs in dir, the content of the workspace being in its lower layer. done gives all back.
func (p property) mountOverlay(dir string) (merged string, done func() error, err error) {
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return "", nil, err
		}
	}
	if err := p.newWorkspace(filepath.Join(dir, "lower")); err != nil {
		return "", nil, err
	}
	layers := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	merged = filepath.Join(dir, "merged")
	done = func() error { return errors.Join(unmountSoon(merged), treestate.Remove(dir)) }
	return merged, done, unix.Mount("overlay", merged, "overlay", 0, layers)
}

// unmountSoon unmounts dir. The kernel gives back some of what it held open for a process only after that has ended.
func unmountSoon(dir string) error {
	return within(hangAfter, func() error {
		for {
			if err := unix.Unmount(dir, 0); !errors.Is(err, unix.EBUSY) {
				return err
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// refusedByOverlay tells what an overlayfs refuses of what is in its lower layer, where nothing of the model is: to rename a
// directory, and to remove an ACL that isn't there, which other filesystems take as done.
func refusedByOverlay(o ops.Op, err error) bool {
	return o.Kind == ops.Rename && errors.Is(err, unix.EXDEV) || o.Kind == ops.DelXattr && errors.Is(err, unix.ENODATA)
}

// sequence is one random life of a workspace. Each operation is in the log before it is executed.
func (p property) sequence(t *rapid.T, base, logName string) {
	log, err := os.Create(logName)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	variant := uint32(chooser{t}.Intn("variant", variants))
	fmt.Fprintln(log, ops.Op{Kind: ops.Variant, Flags: variant})
	w, err := p.newWorld(base, variant)
	if err != nil {
		t.Fatal(err)
	}
	defer closeWorld(t, w)
	g := p.gen()
	step := func(t *rapid.T) {
		v, err := w.view()
		if err != nil {
			t.Fatal(err)
		}
		o := g.Next(chooser{t}, v)
		fmt.Fprintln(log, o)
		if err := within(hangAfter, func() error { return w.do(o) }); err != nil {
			t.Fatalf("%v\n%v", o, err)
		}
	}
	t.Repeat(map[string]func(*rapid.T){"step": step})
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
}

// finish goes through all that a sequence has left: it compares, rolls back to every checkpoint, and has the store checked.
func (w *world) finish() error {
	if err := w.closeHandles(); err != nil {
		return err
	}
	if err := w.compare(); err != nil {
		return err
	}
	v, err := w.view()
	if err != nil {
		return err
	}
	for _, n := range v.Checkpoints {
		if err := w.do(ops.Op{Kind: ops.Rollback, N: n}); err != nil {
			return fmt.Errorf("rollback to checkpoint %d at the end: %w", n, err)
		}
	}
	return w.sub.Check(true)
}

func closeWorld(t *rapid.T, w *world) {
	if err := within(hangAfter, w.close); err != nil && !t.Failed() {
		t.Fatal(err)
	}
}

// longSteps is how many operations a long life has.
const longSteps = 1500

func TestDifferentialLongLivesAreLikeAPlainDirectory(t *testing.T) {
	t.Parallel()
	gen := func() *ops.Generator {
		g := everything()
		g.Explain = false // each reads all of a log that gets long here
		return g
	}
	p := property{lower: lower{name: "long", share: 20, fill: seedTree}, gen: gen, open: openTree("")}
	base := memory(t)
	if log := os.Getenv(envReplay); log != "" {
		p.replay(t, base, log)
		return
	}
	seed := seed(t)
	repeat(t, p.share, func() {
		for range max(steps(t, p.share)/longSteps, 1) {
			seed++
			list, err := p.random(base, seed, longSteps)
			if err == nil {
				continue
			}
			log := p.logName()
			t.Errorf("seed %d: %v", seed, err)
			if err := saveLog(log, list); err != nil {
				t.Error(err)
			}
			p.minimise(t, base, log)
			return
		}
	})
}

// seeded is an ops.Chooser that always chooses the same for one seed.
type seeded struct{ *rand.Rand }

// Intn implements ops.Chooser.
func (s seeded) Intn(_ string, n int) int { return s.IntN(n) }

// random makes and executes n operations that depend on seed alone, without rapid. It gives the operations up to a failure.
func (p property) random(base string, seed uint64, n int) (list []ops.Op, err error) {
	g, c := p.gen(), seeded{rand.New(rand.NewPCG(seed, 0))}
	list = []ops.Op{{Kind: ops.Variant, Flags: uint32(c.IntN(variants))}}
	w, err := p.newWorld(base, list[0].Flags)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for range n {
		v, err := w.view()
		if err != nil {
			return list, err
		}
		o := g.Next(c, v)
		list = append(list, o)
		if err := w.do(o); err != nil {
			return list, fmt.Errorf("%v\n%w", o, err)
		}
	}
	return list, w.finish()
}
