//go:build linux

package overlay

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// Workspace is an open workspace: the live tree, its checkpoints and what can be done with them. Its methods may be
// called concurrently. It holds descriptors from before a mount over the workspace, so it keeps working under it.
type Workspace struct {
	cfg     Config
	root    string // absolute, symlinks resolved
	storeAt string // as a user would name it
	session string // name of this run
	log     *slog.Logger
	store   *checkpoint.Store
	storeFd int
	tiers   *tiers
	tree    *Tree
	events  *events
	done    deeds

	admin sync.RWMutex // see doc.go
	gcing sync.WaitGroup

	pinning sync.Mutex // one pin at a time; after admin

	stop     chan struct{} // closed to end the heartbeat
	beating  sync.WaitGroup
	lastStir int64 // ns since 1970: what the daemon before noted in the ledger

	collecting sync.Mutex                            // one collection in the background at a time; after admin
	dropped    checkpoint.Epoch                      // there are no records of earlier ones, but what deleting them has left for the database to skip; guarded like folded
	folded     map[checkpoint.Epoch]checkpoint.Epoch // ranges that are folded already; guarded by collecting or by admin held alone

	list        sync.RWMutex
	checkpoints map[string]*checkpoint.Checkpoint // guarded by list
	damaged     map[string]error                  // checkpoints whose record can't be read; guarded by list
	seq         uint64                            // guarded by list
	head        string                            // the checkpoint that the live state comes from; guarded by list
	pins        map[checkpoint.Pin]struct{}       // guarded by list
	frozen      frozen                            // what is recorded of ignored paths because of these; guarded by list
	closed      bool                              // guarded by list
	halfway     error                             // why a rollback stopped when a part of it was made; guarded by list

	states  *states
	passing atomic.Uint64 // how many epochs only openNow has needed

	book    *ContractBook
	tracked trackedFiles

	rules []rulesFrom // the ignore patterns of the epochs that may be wanted back, in order; never changes once the workspace is open
}

// Open opens the workspace, makes its store if there is none, and finishes a rollback that was cut short. It fails with
// PATH where the workspace is not a directory, with BUSY where another process works on it, with UNSUPPORTED where the
// store is on another filesystem or has another format, and with INTEGRITY where it was made for another directory.
func Open(cfg Config) (*Workspace, error) {
	w := &Workspace{cfg: cfg, session: NewSession(), log: cfg.Logger, events: newEvents(), storeFd: -1}
	if w.log == nil {
		w.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if w.cfg.MaxCheckpoints == 0 {
		w.cfg.MaxCheckpoints = DefaultMaxCheckpoints
	}
	if err := w.open(); err != nil {
		w.abandon()
		return nil, err
	}
	return w, nil
}

func (w *Workspace) open() error {
	rootFd, err := w.openRoot()
	if err != nil {
		return err
	}
	if err := w.openStoreDir(rootFd); err != nil {
		_ = unix.Close(rootFd)
		return err
	}
	w.hideFromGit()
	if w.store, err = checkpoint.Open(procPath(w.storeFd), checkpoint.Options{Sync: w.cfg.Sync, Logger: w.log, Contents: w.contentsRecorded}); err != nil {
		_ = unix.Close(rootFd)
		return err
	}
	if err := w.openTree(rootFd); err != nil {
		return err
	}
	if err := w.load(); err != nil {
		return err
	}
	rules, err := w.loadRules()
	if err != nil {
		return err
	}
	if err := w.openTracked(); err != nil {
		return err
	}
	if err := w.findOutsideChanges(rules); err != nil {
		return err
	}
	if err := w.markSeen(); err != nil { // what follows is this daemon's own
		return err
	}
	w.startBeating()
	if err := eachName(w.tree.tmpFd, w.tree.removeTemp); err != nil { // nothing in there outlives the process that made it
		return err
	}
	if r, err := w.resume(); err != nil {
		return err
	} else if r != nil {
		r.view.close()
	}
	if err := w.forgetEdits(); err != nil {
		return err
	}
	if err := w.endVolatile(); err != nil {
		return err
	}
	if err := w.cleanUp(); err != nil {
		return err
	}
	if err := w.useRules(rules); err != nil {
		return err
	}
	w.exempt()
	return nil
}

// abandon closes what a failed open has opened.
func (w *Workspace) abandon() {
	if w.stop != nil {
		close(w.stop)
		w.beating.Wait()
	}
	if w.tree != nil {
		w.tree.close()
	}
	if w.tracked.dir != nil {
		_ = w.tracked.dir.Close()
	}
	if w.tiers != nil {
		_ = w.tiers.close()
	}
	if w.store != nil {
		_ = w.store.Close()
	}
	if w.storeFd >= 0 {
		_ = unix.Close(w.storeFd)
	}
}

func (w *Workspace) openRoot() (int, error) {
	abs, err := filepath.Abs(w.cfg.Workspace)
	if err != nil {
		return -1, errs.Wrap(errs.Path, "open workspace", w.cfg.Workspace, err)
	}
	if w.root, err = filepath.EvalSymlinks(abs); err != nil {
		return -1, errs.New(errs.Path, "open workspace", w.cfg.Workspace, "%w", plainPathError(err))
	}
	fd, err := unix.Open(w.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == unix.ENOTDIR {
		return -1, errs.New(errs.Path, "open workspace", w.cfg.Workspace, "it is not a directory")
	}
	if err != nil {
		return -1, errs.New(errs.Path, "open workspace", w.cfg.Workspace, "%w", err)
	}
	return fd, nil
}

// plainPathError drops the path that a *PathError repeats.
func plainPathError(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// openStoreDir opens the store's directory, and makes it if there is none, without a trace in the workspace's
// modification time.
func (w *Workspace) openStoreDir(rootFd int) error {
	if w.cfg.Store == "" {
		w.storeAt = filepath.Join(w.root, StoreName)
		if err := makeStoreDir(rootFd); err != nil {
			return errs.New(errs.Path, "open store", w.storeAt, "%w", err)
		}
		fd, err := unix.Openat(rootFd, StoreName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return errs.New(errs.Path, "open store", w.storeAt, "%w", err)
		}
		w.storeFd = fd
		return nil
	}
	return w.openOtherStore(rootFd)
}

func makeStoreDir(rootFd int) error {
	var st unix.Statx_t
	if err := statFd(rootFd, &st); err != nil {
		return err
	}
	err := unix.Mkdirat(rootFd, StoreName, 0o700)
	if err == unix.EEXIST {
		return nil
	}
	if err != nil {
		return err
	}
	return setMtime(rootFd, nsOf(st.Mtime))
}

func (w *Workspace) openOtherStore(rootFd int) error {
	abs, err := filepath.Abs(w.cfg.Store)
	if err != nil {
		return errs.New(errs.Path, "open store", w.cfg.Store, "%w", err)
	}
	made, err := makeDirs(abs)
	if err != nil {
		return errs.New(errs.Path, "open store", w.cfg.Store, "%w", plainPathError(err))
	}
	if err := w.checkOtherStore(rootFd, abs); err != nil {
		for _, dir := range made {
			_ = os.Remove(dir)
		}
		return err
	}
	return nil
}

// makeDirs makes a directory and those above it that are missing, and gives what it made, the innermost first.
func makeDirs(path string) (made []string, err error) {
	for dir := path; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		made = append(made, dir)
	}
	return made, os.MkdirAll(path, 0o700)
}

// checkOtherStore opens a store outside the workspace, or says why it can't be one.
func (w *Workspace) checkOtherStore(rootFd int, abs string) error {
	abs, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return errs.New(errs.Path, "open store", w.cfg.Store, "%w", plainPathError(err))
	}
	inside := strings.HasPrefix(abs+"/", w.root+"/")
	if inside && abs != filepath.Join(w.root, StoreName) {
		return errs.New(errs.Path, "open store", w.cfg.Store, "it is inside the workspace").
			WithHint("leave it out for " + StoreName + ", or name a directory outside")
	}
	w.storeAt = abs
	if w.storeFd, err = unix.Open(abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return errs.New(errs.Path, "open store", w.cfg.Store, "%w", err)
	}
	var root, store unix.Statx_t
	if err := errors.Join(statMount(rootFd, &root), statMount(w.storeFd, &store)); err != nil {
		return errs.Wrap(errs.Path, "open store", w.cfg.Store, err)
	}
	if root.Dev_major != store.Dev_major || root.Dev_minor != store.Dev_minor || root.Mnt_id != store.Mnt_id {
		return errs.New(errs.Unsupported, "open store", w.cfg.Store, "it is on another filesystem than the workspace").
			WithHint("the store keeps old files by renaming them; name a directory on the workspace's filesystem")
	}
	return nil
}

// hideFromGit keeps a git that looks at the plain directory from adding or cleaning the store.
func (w *Workspace) hideFromGit() {
	fd, err := unix.Openat(w.storeFd, ".gitignore", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return // it is there already, or the failure shows elsewhere
	}
	defer unix.Close(fd)
	_, _ = unix.Write(fd, []byte("*\n"))
}

func statMount(fd int, st *unix.Statx_t) error {
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, st)
}

func (w *Workspace) openTree(rootFd int) error {
	trashFd, err := subdir(w.storeFd, "trash")
	if err != nil {
		return err
	}
	tmpFd, err := subdir(w.storeFd, "tmp")
	if err != nil {
		return err
	}
	backupFd, err := subdir(w.storeFd, "backup")
	if err != nil {
		return err
	}
	hotFd, err := subdir(w.storeFd, "hot")
	if err != nil {
		return err
	}
	if w.tiers, err = openTiers(strategy.Kind(w.cfg.Tier), os.NewFile(uintptr(backupFd), "backup"), w.cfg.tierOptions(), w.log); err != nil {
		return err
	}
	if err := w.tiers.openHot(os.NewFile(uintptr(hotFd), "hot"), w.cfg, w.store); err != nil {
		return err
	}
	ledger, last, err := openLedger(w.storeFd)
	if err != nil {
		return err
	}
	w.lastStir = last
	if w.tree, err = newTree(w.store, w.tiers, w.log, rootFd, trashFd, tmpFd, ledger); err != nil {
		return errs.Wrap(errs.Internal, "open workspace", w.cfg.Workspace, err)
	}
	w.tree.largeMin, w.tree.blockSize = cmp.Or(w.cfg.LargeMin, largeMin), cmp.Or(w.cfg.BlockSize, blockSize)
	return nil
}

func (c Config) tierOptions() strategy.Options {
	return strategy.Options{Sync: c.Sync, NoRAM: c.NoTmpfs, RAM: c.TmpfsDir}
}

func subdir(dirfd int, name string) (int, error) {
	if err := unix.Mkdirat(dirfd, name, 0o700); err != nil && err != unix.EEXIST {
		return -1, errs.New(errs.Path, "open store", name, "%w", err)
	}
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, errs.New(errs.Path, "open store", name, "%w", err)
	}
	return fd, nil
}

// load reads what an earlier process left.
func (w *Workspace) load() error {
	w.checkpoints = map[string]*checkpoint.Checkpoint{}
	w.damaged = map[string]error{}
	w.pins = map[checkpoint.Pin]struct{}{}
	w.states = newStates(w)
	w.folded = map[checkpoint.Epoch]checkpoint.Epoch{}
	var all []checkpoint.Checkpoint
	var damaged []checkpoint.Damaged
	var pins []checkpoint.Pin
	var epoch uint64
	err := w.store.View(func(tx *checkpoint.Tx) (err error) {
		if all, damaged, err = tx.Checkpoints(); err != nil {
			return err
		}
		if pins, err = tx.Pins(); err != nil {
			return err
		}
		if epoch, err = tx.Number(metaEpoch); err != nil {
			return err
		}
		head, err := tx.Meta(metaHead)
		w.head = string(head)
		return err
	})
	if err != nil {
		return err
	}
	for i := range all {
		w.checkpoints[all[i].ID] = &all[i]
		w.seq = max(w.seq, all[i].Seq)
	}
	for _, d := range damaged {
		w.damaged[d.ID] = d.Err
		w.log.Error("the record of a checkpoint is damaged", "checkpoint", d.ID, "err", d.Err)
	}
	for _, p := range pins { // before anything is swept, dropped or joined
		w.pins[p] = struct{}{}
	}
	if err := w.loadFrozen(); err != nil {
		return err
	}
	w.tree.epoch = max(checkpoint.Epoch(epoch), 1)
	if err := w.setProtecting(); err != nil {
		return err
	}
	// Records of an epoch that was never begun are those of a snapshot that was cut short.
	if _, err := w.store.DropEpochs(w.tree.epoch+1, 0); err != nil {
		return err
	}
	return w.checkOwner()
}

// checkOwner refuses a store that came along with a copied workspace: its identities mean nothing here.
func (w *Workspace) checkOwner() error {
	id := w.tree.identity(w.tree.root).String()
	return w.store.Update(func(tx *checkpoint.Tx) error {
		owner, err := tx.Meta(metaOwner)
		if err != nil {
			return err
		}
		if owner == nil {
			return tx.PutMeta(metaOwner, []byte(id))
		}
		if string(owner) != id {
			return foreignStore(w.storeAt)
		}
		return nil
	})
}

// Names of values in the store.
const (
	metaEpoch  = "epoch"
	metaHead   = "head"
	metaOwner  = "owner"
	metaIntent = "intent"
	metaSeen   = "seen"
	metaClean  = "clean"
)

// Close ends all work. The checkpoints stay in the store. It is idempotent.
func (w *Workspace) Close() error {
	w.list.Lock()
	if w.closed {
		w.list.Unlock()
		return nil
	}
	w.closed = true
	w.list.Unlock()
	w.barrier()
	w.gcing.Wait()
	close(w.stop)
	w.beating.Wait()
	w.admin.Lock()
	defer w.admin.Unlock()
	if err := w.closeVolatile(); err != nil {
		w.log.Error("the checkpoints that end with this session can't be disposed; the next start does it", "err", err)
	}
	w.events.close()
	w.tree.mu.Lock()
	defer w.tree.mu.Unlock()
	w.states.end()
	if err := w.tiers.settle(); err != nil {
		w.log.Warn("preimages stay in RAM, where a reboot takes them", "err", err)
	}
	_ = w.tracked.dir.Close()                                                                 // nothing was written to it
	err := errors.Join(w.lastBeat(), w.tiers.close(), w.store.Close(), unix.Close(w.storeFd)) // the store last: with it goes the lock
	w.tree.close()
	return err
}

// barrier waits until everybody is done who came in before the workspace was closed.
func (w *Workspace) barrier() {
	leave := w.admin.Unlock
	w.admin.Lock()
	leave()
}

// enter begins administrative work, alone or together with other work that shares; leave ends it. DISPOSED says that
// the workspace is closed. Where a rollback has stopped halfway, work that is alone finishes it first, and all fails where it can't be.
func (w *Workspace) enter(op string, shared bool) (leave func(), err error) {
	if !shared {
		leave, _, err = w.enterAlone(op)
		return leave, err
	}
	w.admin.RLock()
	if err = w.check(op); err == nil {
		err = w.stoppedHalfway()
	}
	if err != nil {
		w.admin.RUnlock()
		return nil, err
	}
	return w.admin.RUnlock, nil
}

// enterAlone is enter for work that is alone. It gives the rollback that it had to finish, nil if there was none.
func (w *Workspace) enterAlone(op string) (leave func(), finished *RollbackResult, err error) {
	w.admin.Lock()
	if err = w.check(op); err != nil {
		w.admin.Unlock()
		return nil, nil, err
	}
	done := w.store.Urgent()
	if w.stoppedHalfway() != nil {
		if finished, err = w.finishRollback(); err != nil {
			done()
			w.admin.Unlock()
			return nil, nil, err
		}
	}
	return func() { done(); w.admin.Unlock() }, finished, nil
}

// stay keeps the workspace from being closed until leave is called. No lock of it may be held meanwhile that Close wants.
func (w *Workspace) stay(op string) (leave func(), err error) {
	w.list.RLock()
	defer w.list.RUnlock()
	if w.closed {
		return nil, errs.New(errs.Disposed, op, "", "the workspace is closed")
	}
	w.gcing.Add(1) // Close waits for that after it has set closed
	return w.gcing.Done, nil
}

// check reports whether the workspace can still be used.
func (w *Workspace) check(op string) error {
	w.list.RLock()
	defer w.list.RUnlock()
	if w.closed {
		return errs.New(errs.Disposed, op, "", "the workspace is closed")
	}
	return nil
}

// Tree gives the live tree.
func (w *Workspace) Tree() *Tree { return w.tree }

// Root gives the absolute path of the workspace.
func (w *Workspace) Root() string { return w.root }

// StorePath gives the absolute path of the store.
func (w *Workspace) StorePath() string { return w.storeAt }
