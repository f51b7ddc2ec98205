package scan

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/feed"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
)

// Workspace is an open workspace: a directory, and the checkpoints in its store. Its methods may be called concurrently.
type Workspace struct {
	cfg      overlay.Config
	session  string // name of this run
	root     string // absolute, symlinks resolved
	storeAt  string // absolute
	log      *slog.Logger
	top      dir // the workspace
	births   bool
	volume   *overlay.WindowsVolume // nil but on Windows
	clock    *os.File               // a file in the store, whose ctime is the filesystem's time
	slow     bool                   // the store is on another filesystem, whose clock may be another one
	lifts    lifts
	store    *checkpoint.Store
	backups  *backups
	events   feed.Feed[overlay.Event]
	history  history
	damaged  map[string]error // checkpoints whose record can't be read; guarded by admin
	lastScan atomic.Pointer[overlay.ScanStatus]
	book     *overlay.ContractBook
	rules    *ignore.Rules // in use; never changes once the workspace is open
	scope    scope         // of scans that anybody asks for; guarded by admin

	admin  sync.Mutex // see doc.go; guards closed and pending
	closed bool
	// pending is a rollback that could not be finished: whatever changes or looks at the tree finishes it first.
	pending *intent
}

// Names in the store.
const (
	manifestsName = "manifests"
	backupsName   = "backup"
	clockName     = "clock"
)

// Names of values in the store's database.
const (
	metaHead    = "head"
	metaIntent  = "intent"
	metaBackups = "backups" // the number of the next backup
	metaScan    = "scan"    // what the last scan has cost
)

// Open opens the workspace, makes its store if there is none, and finishes a rollback that was cut short. Errors: PATH where the
// workspace is no directory, BUSY where another process works on it, UNSUPPORTED where the store was made by a mount or
// has another format.
func Open(cfg overlay.Config) (*Workspace, error) {
	w := &Workspace{cfg: cfg, session: overlay.NewSession(), log: cfg.Logger, damaged: map[string]error{}}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.cfg.MaxCheckpoints == 0 {
		w.cfg.MaxCheckpoints = overlay.DefaultMaxCheckpoints
	}
	if err := refuseStrict(cfg); err != nil {
		return nil, err
	}
	var opened closers
	if err := w.open(&opened); err != nil {
		opened.close()
		return nil, err
	}
	return w, nil
}

// closers are what must be closed again, the last one first.
type closers []func()

func (c *closers) add(fn func()) { *c = append(*c, fn) }

func (c *closers) close() {
	for i := len(*c) - 1; i >= 0; i-- {
		(*c)[i]()
	}
}

func (w *Workspace) open(opened *closers) error {
	if err := w.openRoot(); err != nil {
		return err
	}
	opened.add(w.top.close)
	if err := w.makeStore(); err != nil {
		return err
	}
	var err error
	o := checkpoint.Options{Sync: w.cfg.Sync, Logger: w.log, Backend: checkpoint.BackendScan}
	if w.store, err = checkpoint.Open(w.storeAt, o); err != nil {
		return err
	}
	opened.add(func() { _ = w.store.Close() })
	if err := w.openFiles(opened); err != nil {
		return err
	}
	if err := w.load(); err != nil {
		return err
	}
	if w.book, err = overlay.OpenContracts(w.store, w.root); err != nil {
		return err
	}
	if err := w.loadRules(); err != nil {
		return err
	}
	if err := w.putBackLifted(); err != nil {
		return errs.Ensure("open workspace", w.root, err)
	}
	if _, err := w.settle(context.Background()); err != nil {
		w.log.Error("a rollback that was cut short can't be finished yet", "err", err) // whoever needs it finished is told
	}
	if w.pending != nil {
		return nil // that rollback may need them
	}
	return w.endVolatile()
}

func (w *Workspace) openRoot() error {
	abs, err := filepath.Abs(w.cfg.Workspace)
	if err == nil {
		w.root, err = filepath.EvalSymlinks(abs)
	}
	if err == nil {
		w.top, err = openTop(w.root)
	}
	if err != nil {
		return errs.New(errs.Path, "open workspace", w.cfg.Workspace, "%w", plain(err))
	}
	w.births = stableBirth(w.top)
	w.volume = volumeAround(w.top, w.root)
	return nil
}

// plain drops the path that a *PathError repeats.
func plain(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// makeStore makes the store's directory if there is none, without a trace in the workspace's modification time.
func (w *Workspace) makeStore() error {
	w.storeAt = filepath.Join(w.root, overlay.StoreName)
	if w.cfg.Store != "" {
		abs, err := filepath.Abs(w.cfg.Store)
		if err != nil {
			return errs.Wrap(errs.Path, "open store", w.cfg.Store, err)
		}
		w.storeAt = abs
	}
	before, err := os.Stat(w.root)
	if err != nil {
		return errs.New(errs.Path, "open workspace", w.root, "%w", plain(err))
	}
	if _, err := os.Lstat(w.storeAt); err == nil {
		return w.checkStore()
	}
	if err := os.MkdirAll(w.storeAt, 0o700); err != nil {
		return errs.New(errs.Path, "open store", w.storeAt, "%w", plain(err))
	}
	if err := os.Chtimes(w.root, time.Time{}, before.ModTime()); err != nil {
		return errs.New(errs.Path, "open store", w.storeAt, "%w", plain(err))
	}
	return w.checkStore()
}

// checkStore refuses a store that a scan would take for a part of the workspace.
func (w *Workspace) checkStore() error {
	st, err := os.Lstat(w.storeAt)
	if err != nil || w.cfg.Store == "" && !st.IsDir() {
		return errs.New(errs.Path, "open store", w.storeAt, "it is not a directory")
	}
	real, err := filepath.EvalSymlinks(w.storeAt)
	if err != nil {
		return errs.New(errs.Path, "open store", w.storeAt, "%w", plain(err))
	}
	w.storeAt = real
	if rel, err := filepath.Rel(w.root, real); err == nil && filepath.IsLocal(rel) && rel != overlay.StoreName {
		return errs.New(errs.Path, "open store", w.cfg.Store, "it is inside the workspace").
			WithHint("leave it out for " + overlay.StoreName + ", or name a directory outside")
	}
	return nil
}

// openFiles opens what the store has beside its database. The store is locked by now.
func (w *Workspace) openFiles(opened *closers) error {
	hideFromGit(w.storeAt)
	for _, name := range []string{manifestsName, backupsName} {
		if err := os.Mkdir(filepath.Join(w.storeAt, name), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return errs.New(errs.Path, "open store", name, "%w", plain(err))
		}
	}
	d, err := os.Open(filepath.Join(w.storeAt, backupsName))
	if err != nil {
		return errs.New(errs.Path, "open store", backupsName, "%w", plain(err))
	}
	defer d.Close()
	if w.backups, err = openBackups(strategy.Kind(w.cfg.Tier), d, strategy.Options{Sync: w.cfg.Sync}); err != nil {
		return err
	}
	opened.add(func() { _ = w.backups.Close() })
	if w.clock, err = os.OpenFile(filepath.Join(w.storeAt, clockName), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return errs.New(errs.Path, "open store", clockName, "%w", plain(err))
	}
	opened.add(func() { _ = w.clock.Close() })
	w.lifts.path = filepath.Join(w.storeAt, liftsName)
	return w.compareClocks()
}

// hideFromGit keeps git from adding or cleaning the store.
func hideFromGit(store string) {
	f, err := os.OpenFile(filepath.Join(store, ".gitignore"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return // it is there already, or the failure shows elsewhere
	}
	_, _ = f.WriteString("*\n")
	_ = f.Close()
}

func (w *Workspace) compareClocks() error {
	a, err := w.top.self()
	if err != nil {
		return errs.Wrap(errs.Internal, "open workspace", w.root, err)
	}
	b, err := statFile(w.clock)
	w.slow = a.dev != b.dev
	return errs.Wrap(errs.Internal, "open store", w.storeAt, err)
}

// foreignClock is how much the clocks and the resolutions of two filesystems may differ, in ns.
const foreignClock = 3e9

// now gives the time that the filesystem would give to a change made now.
func (w *Workspace) now() (int64, error) {
	st, err := tick(w.clock)
	if w.slow {
		st.ctime -= foreignClock
	}
	return st.ctime, err
}

// load reads what an earlier process left.
func (w *Workspace) load() error {
	var all []checkpoint.Checkpoint
	var damaged []checkpoint.Damaged
	var head, in []byte
	var next uint64
	err := w.store.View(func(tx *checkpoint.Tx) (err error) {
		if all, damaged, err = tx.Checkpoints(); err != nil {
			return err
		}
		if next, err = tx.Number(metaBackups); err != nil {
			return err
		}
		if head, err = tx.Meta(metaHead); err != nil {
			return err
		}
		in, err = tx.Meta(metaIntent)
		return err
	})
	if err != nil {
		return err
	}
	for _, d := range damaged {
		w.damaged[d.ID] = d.Err
		w.log.Error("the record of a checkpoint is damaged", "checkpoint", d.ID, "err", d.Err)
	}
	w.history.load(all, string(head), w.session)
	w.backups.next.Store(next)
	if in != nil {
		w.pending = new(intent)
		if err := json.Unmarshal(in, w.pending); err != nil {
			return errs.New(errs.Integrity, "resume rollback", "", "the intent is corrupt: %w", err)
		}
	}
	return w.loadCost()
}

// Close ends all work. The checkpoints stay in the store. It is idempotent.
func (w *Workspace) Close() error {
	w.admin.Lock()
	defer w.admin.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	if err := w.closeVolatile(); err != nil {
		w.log.Error("the checkpoints that end with this session can't be disposed; the next start does it", "err", err)
	}
	w.events.Close()
	w.top.close()
	return errors.Join(w.store.Close(), w.backups.Close(), w.clock.Close())
}

// enter begins work that nobody else does meanwhile, and finishes a rollback that was cut short; leave ends it. DISPOSED
// says that the workspace is closed.
func (w *Workspace) enter(ctx context.Context, op string) (leave func(), err error) {
	leave, _, err = w.enterFinishing(ctx, op)
	return leave, err
}

// enterFinishing is enter. It gives the rollback that it had to finish, nil if there was none.
func (w *Workspace) enterFinishing(ctx context.Context, op string) (leave func(), finished *overlay.RollbackResult, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	w.admin.Lock()
	if err := w.check(op); err != nil {
		w.admin.Unlock()
		return nil, nil, err
	}
	done := w.store.Urgent()
	leave = func() {
		done()
		w.admin.Unlock()
	}
	if finished, err = w.settle(ctx); err != nil {
		leave()
		return nil, nil, err
	}
	return leave, finished, nil
}

// check reports whether the workspace can still be used. The caller holds w.admin.
func (w *Workspace) check(op string) error {
	if w.closed {
		return errs.New(errs.Disposed, op, "", "the workspace is closed")
	}
	return nil
}

// Root gives the absolute path of the workspace.
func (w *Workspace) Root() string { return w.root }

// StorePath gives the absolute path of the store.
func (w *Workspace) StorePath() string { return w.storeAt }

// Turns gives the turns that the store has.
func (w *Workspace) Turns() *checkpoint.Turns { return w.store.Turns() }

// Unchanged is always false: only a scan can tell.
func (w *Workspace) Unchanged(string) bool { return false }

// Subscribe gives a channel of all changes of state from now on, and a function that ends it. The channel is closed by
// that function, or when the workspace is closed. A subscriber who does not read loses events.
func (w *Workspace) Subscribe() (<-chan overlay.Event, func()) { return w.events.Subscribe() }

// Announce tells all subscribers of a change of state. It never blocks.
func (w *Workspace) Announce(ev overlay.Event) { w.events.Send(ev) }

func (w *Workspace) send(kind, id string, data any) {
	w.Announce(overlay.Event{Type: kind, Time: time.Now(), Checkpoint: id, Data: data})
}

// readSmall reads the beginning of a file of the workspace, "" where that cannot be.
func (w *Workspace) readSmall(path string) string {
	d, err := w.openDir(parentOf(path))
	if err != nil {
		return ""
	}
	defer d.close()
	f, err := d.open(baseOf(path))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// parentOf gives the directory of a workspace-relative path, "." for the workspace itself.
func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i]
	}
	return "."
}

func baseOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
