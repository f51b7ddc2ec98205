//go:build linux

package branch

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"
)

// Config says what a Manager works with. All but Ignored, Log and Idle is required. The functions may be called by any goroutine; none is called by
// main's own calls of the Manager.
type Config struct {
	Store *checkpoint.Store
	Dir   *os.File // <store>/branches; it stays the caller's

	// State gives what main was at the beginning of an epoch that is pinned, or that an active checkpoint has.
	State func(checkpoint.Epoch) (overlay.State, error)

	// Ignored gives what main has no history of since the state of a pinned epoch, but for what is below another such path: a diff and a merge leave it out. It
	// is nil, or gives nil, where there is no such thing.
	Ignored func(checkpoint.Epoch) func(path string, isDir bool) bool

	// Checkpoint gives a checkpoint of main: NOT_FOUND where there is none.
	Checkpoint func(id string) (checkpoint.Checkpoint, error)

	// Pin calls fn in a transaction, with an active checkpoint of main, "" being the newest, and the epoch to build on as its own. That must not be given up between
	// the call of fn, from which on PinnedEpochs has it, and the commit.
	Pin func(id string, fn func(*checkpoint.Tx, checkpoint.Checkpoint) error) error

	// Unpinned is called with PinnedEpochs when they may have become fewer, already by New; nil is nobody. Nobody forks meanwhile.
	Unpinned func(needed []checkpoint.Epoch) error

	Sync    bool          // what a checkpoint holds reaches the disk before the checkpoint is made
	NewNum  func() uint64 // numbers for inodes; see overlay.Inode
	Reserve func() string // IDs of checkpoints
	Session string        // what makes the checkpoints; see checkpoint.Checkpoint

	Log  *slog.Logger  // nil means none
	Idle time.Duration // after which a volume that nobody uses is let go of; 0 means DefaultIdle
}

// DefaultIdle is Config.Idle where that is 0.
const DefaultIdle = 30 * time.Second

// numChunk is how many numbers are taken from the store at once. A death loses those that were not used.
const numChunk = 4096

// collectRetry is how long a collection waits while somebody is at work.
const collectRetry = 20 * time.Millisecond

// metaNum is the number in the store up to which others are given out.
const metaNum = "branch-num"

// Manager has the branches of a workspace. Its methods may be called concurrently. Errors are of internal/errs.
type Manager struct {
	cfg   Config
	store *checkpoint.Store
	pool  *pool
	log   *slog.Logger

	admin sync.RWMutex // see doc.go

	mu          sync.Mutex // guards what follows
	notifier    overlay.Notifier
	branches    map[uint64]*checkpoint.Branch // whatever their status
	active      map[string]*checkpoint.Branch // by name
	checkpoints map[string]*checkpoint.BranchCheckpoint
	layers      map[uint64]checkpoint.Layer
	volumes     map[volumeKey]*Volume
	seq         uint64
	closed      bool

	numMu   sync.Mutex // guards what follows; after all others
	num     uint64     // the last number that was given out
	numUpTo uint64     // those that the store knows of

	unloaded atomic.Bool // since unloadIdle began

	work    sync.WaitGroup
	stop    chan struct{}
	collect chan struct{}
}

// New opens the branches of a store, and removes from the pool what no record names.
func New(cfg Config) (*Manager, error) {
	m := &Manager{
		cfg: cfg, store: cfg.Store, log: cfg.Log,
		branches: map[uint64]*checkpoint.Branch{}, active: map[string]*checkpoint.Branch{},
		checkpoints: map[string]*checkpoint.BranchCheckpoint{}, layers: map[uint64]checkpoint.Layer{}, volumes: map[volumeKey]*Volume{},
		stop: make(chan struct{}), collect: make(chan struct{}, 1),
	}
	if m.log == nil {
		m.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	m.cfg.Idle = cmp.Or(cfg.Idle, DefaultIdle)
	var err error
	if m.pool, err = openPool(cfg.Dir); err != nil {
		return nil, errs.Wrap(errs.Internal, "open branches", "", err)
	}
	if err = m.load(); err == nil {
		_, err = m.free()
	}
	if err == nil {
		_, err = m.sweep()
	}
	if err != nil {
		return nil, errors.Join(errs.Ensure("open branches", "", err), m.pool.close())
	}
	m.work.Add(1)
	go m.run()
	return m, nil
}

// load reads what an earlier process left.
func (m *Manager) load() error {
	return m.store.View(func(tx *checkpoint.Tx) error {
		branches, err := tx.Branches()
		if err != nil {
			return err
		}
		for i := range branches {
			b := &branches[i]
			m.branches[b.Num] = b
			if b.Status == checkpoint.BranchActive {
				m.active[b.Name] = b
			}
		}
		list, err := tx.BranchCheckpoints()
		if err != nil {
			return err
		}
		for i := range list {
			m.checkpoints[list[i].ID] = &list[i]
			m.seq = max(m.seq, list[i].Seq)
		}
		layers, err := tx.Layers()
		if err != nil {
			return err
		}
		for _, l := range layers {
			m.layers[l.Num] = l
		}
		m.num, err = tx.Number(metaNum)
		m.numUpTo = m.num
		return err
	})
}

// SetNotifier sets who is told what to forget. Call it before any volume is used.
func (m *Manager) SetNotifier(n overlay.Notifier) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notifier = n
}

func (m *Manager) notify() overlay.Notifier {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.notifier
}

// next gives a number that was never given out before, for an inode, a layer or a branch.
func (m *Manager) next() (uint64, error) {
	m.numMu.Lock()
	defer m.numMu.Unlock()
	if m.num == m.numUpTo {
		upTo := m.numUpTo + numChunk
		if err := m.store.Update(func(tx *checkpoint.Tx) error { return tx.PutNumber(metaNum, upTo) }); err != nil {
			return 0, err
		}
		m.numUpTo = upTo
	}
	m.num++
	return m.num, nil
}

// reserve gives a number for an inode that the pool is about to get, and which may stay there without a record.
func (m *Manager) reserve() (uint64, error) {
	num, err := m.next()
	if err == nil {
		m.pool.keep(num)
	}
	return num, err
}

// discard removes from the pool what no record names any more. A failure leaves it for gc.
func (m *Manager) discard(num uint64) {
	if err := m.pool.drop(num); err != nil {
		m.log.Warn("a file that is not needed any more could not be removed; gc will", "err", err)
	}
}

// run lets go of idle volumes and frees layers.
func (m *Manager) run() {
	defer m.work.Done()
	tick := time.NewTicker(max(m.cfg.Idle/2, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-tick.C:
			m.unloadIdle()
		case <-m.collect:
			if !m.admin.TryLock() { // who waits for the lock keeps others from sharing it
				time.AfterFunc(collectRetry, m.collectSoon)
				continue
			}
			_, err := m.free()
			m.admin.Unlock()
			if err != nil {
				m.log.Error("layers that are not needed any more could not be removed; gc will", "err", err)
			}
		}
	}
}

// collectSoon has layers freed that nothing stands on any more.
func (m *Manager) collectSoon() {
	select {
	case m.collect <- struct{}{}:
	default:
	}
}

// unloadIdle lets go of what nobody uses. The system gets the memory at once, as an idle process may collect none for minutes.
func (m *Manager) unloadIdle() {
	defer func() {
		if m.unloaded.Swap(false) {
			debug.FreeOSMemory()
		}
	}()
	m.mu.Lock()
	all := make([]*Volume, 0, len(m.volumes))
	for _, v := range m.volumes {
		all = append(all, v)
	}
	m.mu.Unlock()
	for _, v := range all {
		if !v.unload(m.cfg.Idle) {
			continue
		}
		m.mu.Lock()
		if v.users == 0 && m.volumes[v.key] == v {
			delete(m.volumes, v.key)
			v.retire()
			if v.readonly {
				m.collectSoon() // it may have been the last that stood on its layer
			}
		}
		m.mu.Unlock()
	}
}

// retire makes sure that who still has a node of a volume that is given up gets ESTALE. The caller holds Manager.mu; mu is free, but for
// somebody who is about to find out.
func (v *Volume) retire() {
	go func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.gone = true
		v.closeState()
	}()
}

// Close ends all use. It is idempotent.
func (m *Manager) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.mu.Unlock()
	close(m.stop)
	m.work.Wait()
	m.admin.Lock()
	defer m.admin.Unlock()
	m.mu.Lock()
	volumes := m.volumes
	m.volumes = map[volumeKey]*Volume{}
	m.mu.Unlock()
	for _, v := range volumes {
		v.mu.Lock()
		v.gone = true
		v.closeState()
		v.mu.Unlock()
	}
	return m.pool.close()
}

// enter begins administrative work, alone or shared; leave ends it.
func (m *Manager) enter(op string, shared bool) (leave func(), err error) {
	if shared {
		m.admin.RLock()
		leave = m.admin.RUnlock
	} else {
		m.admin.Lock()
		leave = m.admin.Unlock
	}
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed {
		leave()
		return nil, errs.New(errs.Disposed, op, "", "the workspace is closed")
	}
	return leave, nil
}

// chain gives the layers up to one, the lowest first, and the epoch of main below.
func (m *Manager) chain(layer uint64) (chain []uint64, epoch checkpoint.Epoch, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for num := layer; num != 0; {
		l, ok := m.layers[num]
		if !ok || len(chain) > len(m.layers) {
			return nil, 0, errs.New(errs.Integrity, "read branch", "", "layer %d is missing", num)
		}
		chain = append(chain, num)
		num, epoch = l.Parent, l.Epoch
	}
	slices.Reverse(chain)
	return chain, epoch, nil
}

// loadState merges the chain up to a layer, 0 for none, over what main was at an epoch.
func (m *Manager) loadState(epoch checkpoint.Epoch, layer uint64) (*state, error) {
	chain, below, err := m.chain(layer)
	if err != nil {
		return nil, err
	}
	if layer != 0 {
		epoch = below
	}
	base, err := m.cfg.State(epoch)
	if err != nil {
		return nil, err
	}
	var st *state
	err = m.store.View(func(tx *checkpoint.Tx) (err error) { st, err = loadState(tx, base, chain); return err })
	if err != nil {
		base.Close()
	}
	return st, err
}

// PinnedEpochs gives the epochs of main that branches lie over, in order. Main calls it when it decides what to keep.
func (m *Manager) PinnedEpochs() []checkpoint.Epoch {
	m.mu.Lock()
	defer m.mu.Unlock()
	var es []checkpoint.Epoch
	for _, l := range m.layers {
		if l.Parent == 0 {
			es = append(es, l.Epoch)
		}
	}
	slices.Sort(es)
	return slices.Compact(es)
}

// place says which volume is wanted.
type place struct {
	key   volumeKey
	layer uint64
	epoch checkpoint.Epoch
}

// hold gives a volume to one user more, as it is, loaded or not. where is called with Manager.mu held: so nobody changes layers between its
// answer and the volume's being known.
func (m *Manager) hold(op string, where func() (place, error)) (*Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errs.New(errs.Disposed, op, "", "the workspace is closed")
	}
	p, err := where()
	if err != nil {
		return nil, err
	}
	v := m.volumes[p.key]
	if v == nil {
		v = m.newVolume(p)
		m.volumes[p.key] = v
	}
	v.users++
	return v, nil
}

// volume is hold, with the volume loaded.
func (m *Manager) volume(op string, where func() (place, error)) (*Volume, error) {
	v, err := m.hold(op, where)
	if err != nil {
		return nil, err
	}
	if err := v.prepare(); err != nil {
		m.giveBack(v)
		return nil, errs.Ensure(op, "", err)
	}
	return v, nil
}

func (m *Manager) giveBack(v *Volume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.users > 0 {
		v.users--
	}
}

// prepare makes the root, which is held for good.
func (v *Volume) prepare() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.prepareLocked()
}

// prepareLocked is prepare for a caller who holds mu alone.
func (v *Volume) prepareLocked() error {
	if err := v.loadLocked(); err != nil || v.root != nil {
		return err
	}
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	v.root = v.internLocked(checkpoint.LayerSlot{ID: v.st.base.Root(), Type: unix.S_IFDIR})
	return nil
}

func (m *Manager) newVolume(p place) *Volume {
	key := p.key
	return &Volume{
		m: m, key: key, layer: p.layer, epoch: p.epoch, readonly: key.branch == 0,
		salt:  mix(key.branch)<<1 ^ mix(mix(key.layer))<<2 ^ mix(mix(mix(uint64(key.epoch))))<<3,
		nodes: map[checkpoint.ID]*node{}, orphans: map[*node]struct{}{}, open: map[*node]struct{}{},
	}
}

// live is the place of an active branch's tree. Manager.mu is held when the function that it gives is called.
func (m *Manager) live(op, name string) func() (place, error) {
	return func() (place, error) {
		b := m.active[name]
		if b == nil {
			return place{}, noBranch(op, name)
		}
		return place{volumeKey{branch: b.Num}, b.Layer, b.Epoch}, nil
	}
}

// Volume gives the tree of an active branch. Give it back with Close. NOT_FOUND says that there is none.
func (m *Manager) Volume(name string) (*Volume, error) {
	return m.volume("open branch", m.live("open branch", name))
}

// At gives what a branch, or main, was at one of its active checkpoints, read-only. Give it back with Close.
func (m *Manager) At(id string) (*Volume, error) {
	const op = "open checkpoint"
	if !m.knows(id) {
		c, err := m.cfg.Checkpoint(id)
		if err == nil {
			err = usable(op, &c)
		}
		return m.volume(op, func() (place, error) { return place{volumeKey{epoch: c.Epoch}, 0, c.Epoch}, err })
	}
	return m.volume(op, func() (place, error) {
		c := m.checkpoints[id]
		if c == nil {
			return place{}, noCheckpoint(op, id)
		}
		return place{volumeKey{layer: c.Layer}, c.Layer, 0}, usable(op, &c.Checkpoint)
	})
}

// newestID gives the checkpoint of its own that the state of an active branch comes from, "" where there is none.
func (m *Manager) newestID(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.active[name]; b != nil {
		if c := m.newest(b); c != nil {
			return c.ID
		}
	}
	return ""
}

// isActive reports whether there is an active branch of that name.
func (m *Manager) isActive(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.active[name] != nil
}

// knows reports whether a checkpoint is of a branch.
func (m *Manager) knows(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checkpoints[id] != nil
}

// ForkPoint gives what a branch was when it was forked, read-only. Give it back with Close.
func (m *Manager) ForkPoint(name string) (*Volume, error) {
	const op = "open fork point"
	return m.volume(op, func() (place, error) {
		b := m.active[name]
		switch {
		case b == nil:
			return place{}, noBranch(op, name)
		case b.Fork == 0:
			return place{volumeKey{epoch: b.Epoch}, 0, b.Epoch}, nil
		}
		return place{volumeKey{layer: b.Fork}, b.Fork, b.Epoch}, nil
	})
}

func noBranch(op, name string) error {
	return errs.New(errs.NotFound, op, name, "there is no such branch").WithHint("`hyperfs branches` shows them")
}

func noCheckpoint(op, id string) error {
	return errs.New(errs.NotFound, op, id, "there is no such checkpoint").WithHint("`hyperfs list` shows them")
}

// usable says why a checkpoint's state can't be had, or nil.
func usable(op string, c *checkpoint.Checkpoint) error {
	if c.Status != checkpoint.Active {
		return errs.New(errs.Rollback, op, c.ID, "the checkpoint is %s", c.Status)
	}
	return nil
}

func newID(prefix string) string { return prefix + ulid.Make().String() }
