//go:build linux

package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// tiers are the tier that new preimages go to, and those that older ones may be in. In front of them is the hot buffer.
type tiers struct {
	hot    *strategy.HotBuffer
	probes []strategy.Probe
	dir    *os.File // of the durable preimages
	opts   strategy.Options
	blocks *strategy.Blocks
	saved  savings
	noRAM  bool // no preimage goes to RAM unless the tier in use is there already
	log    *slog.Logger

	slowSave time.Duration // see leaveIfSlow

	degrading sync.Mutex // held by whoever looks for a tier that works; after all locks of doc.go

	mu       sync.RWMutex // after degrading
	current  strategy.Strategy
	opened   map[strategy.Kind]strategy.Strategy // with current
	degraded []Degraded
}

func openTiers(kind strategy.Kind, dir *os.File, o strategy.Options, log *slog.Logger) (*tiers, error) {
	automatic := kind == "" || kind == strategy.Auto
	noRAM := o.NoRAM || o.Sync || !automatic // who asks for a durable tier gets no other
	if !automatic {
		o.NoRAM = kind != strategy.Tmpfs
	}
	s, probes, err := strategy.Open(kind, dir, o)
	if err != nil {
		return nil, err
	}
	blocks, err := strategy.OpenBlocks(dir, o)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &tiers{probes: probes, dir: dir, opts: o, blocks: blocks, noRAM: noRAM, log: log, slowSave: slowSave,
		current: s, opened: map[strategy.Kind]strategy.Strategy{s.Kind(): s}}, nil
}

func (t *tiers) saver() strategy.Strategy {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.current
}

// Kind is the tier that new preimages go to.
func (t *tiers) Kind() strategy.Kind { return t.saver().Kind() }

// at gives a tier for what it saved earlier. ErrMissing says that it holds nothing any more.
func (t *tiers) at(kind strategy.Kind) (strategy.Strategy, error) {
	t.mu.RLock()
	s := t.opened[kind]
	t.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.opened[kind]; s != nil {
		return s, nil
	}
	s, err := strategy.OpenSaved(kind, t.dir, t.opts)
	if err != nil {
		return nil, fmt.Errorf("the tier %s that holds a preimage is out of reach: %w", kind, err)
	}
	t.opened[kind] = s
	return s, nil
}

// holder is what has preimages: a tier, or the hot buffer.
type holder interface {
	Verify(ref strategy.Ref) error
	Restore(ref strategy.Ref, dst *os.File) error
	Materialize(ref strategy.Ref, dirfd int, name string, share bool) error
	Open(ref strategy.Ref) (*os.File, error)
	Remove(ref strategy.Ref) error
}

// use runs fn with what holds a preimage. What was in RAM may have been moved to disk since (see settle).
func (t *tiers) use(ref strategy.Ref, fn func(holder, strategy.Ref) error) error {
	if ref.Tier == strategy.Hot {
		return fn(t.hot, ref)
	}
	s, err := t.at(ref.Tier)
	if err == nil {
		err = fn(s, ref)
	}
	if !ref.Tier.Volatile() || !errors.Is(err, strategy.ErrMissing) {
		return err
	}
	settled := onDisk(ref)
	if s, onDiskErr := t.at(settled.Tier); onDiskErr != nil {
		return errors.Join(err, onDiskErr)
	} else if onDiskErr = fn(s, settled); !errors.Is(onDiskErr, strategy.ErrMissing) {
		return onDiskErr
	}
	return fmt.Errorf("it was in RAM, and a reboot or somebody took it: %w", strategy.ErrMissing)
}

// onDisk is the reference of a volatile preimage that was moved to disk.
func onDisk(ref strategy.Ref) strategy.Ref {
	ref.Tier = strategy.PureManifest
	return ref
}

func (t *tiers) verify(ref strategy.Ref) error {
	if ref.Blocks {
		return t.blocks.Verify(ref)
	}
	return t.use(ref, func(s holder, ref strategy.Ref) error { return s.Verify(ref) })
}

func (t *tiers) restore(ref strategy.Ref, dst *os.File) error {
	return t.use(ref, func(s holder, ref strategy.Ref) error { return s.Restore(ref, dst) })
}

func (t *tiers) materialize(ref strategy.Ref, dirfd int, name string, share bool) error {
	return t.use(ref, func(s holder, ref strategy.Ref) error { return s.Materialize(ref, dirfd, name, share) })
}

func (t *tiers) open(ref strategy.Ref) (f *os.File, err error) {
	err = t.use(ref, func(s holder, ref strategy.Ref) (err error) {
		f, err = s.Open(ref)
		return err
	})
	return f, err
}

// remove frees a preimage, wherever it is.
func (t *tiers) remove(ref strategy.Ref) error {
	err := t.removeAt(ref)
	if ref.Tier.Volatile() {
		err = errors.Join(err, t.removeAt(onDisk(ref)))
	}
	return err
}

func (t *tiers) removeAt(ref strategy.Ref) error {
	if ref.Tier == strategy.Hot {
		return t.hot.Remove(ref)
	}
	s, err := t.at(ref.Tier)
	if errors.Is(err, strategy.ErrMissing) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Remove(ref)
}

// list calls fn for every preimage of every tier and of the hot buffer. ref is no more than what remove needs. What is in RAM and on disk
// comes twice.
func (t *tiers) list(fn func(ref strategy.Ref, size int64) error) error {
	err := t.hot.List(func(name string, size int64) error { return fn(strategy.Ref{Tier: strategy.Hot, Name: name}, size) })
	if err != nil {
		return err
	}
	for _, kind := range []strategy.Kind{strategy.PureManifest, strategy.Tmpfs} {
		s, err := t.at(kind)
		if kind.Volatile() && err != nil {
			continue // there is nothing, or nothing that could be had
		}
		if err != nil {
			return err
		}
		err = s.List(func(name string, size int64) error { return fn(strategy.Ref{Tier: kind, Name: name}, size) })
		if err != nil && !(kind.Volatile() && errors.Is(err, fs.ErrNotExist)) { // somebody has removed the whole directory
			return err
		}
	}
	return nil
}

// settle moves what is in RAM to disk, so that it survives a reboot. What can't be moved stays where it is. Nothing may be
// saved meanwhile.
func (t *tiers) settle() error {
	s, err := t.at(strategy.Tmpfs)
	if err != nil {
		return nil
	}
	return s.List(func(name string, size int64) error {
		return t.settleOne(s, strategy.Ref{Tier: strategy.Tmpfs, Name: name, Size: size})
	})
}

func (t *tiers) settleOne(from strategy.Strategy, ref strategy.Ref) error {
	to, err := t.at(strategy.PureManifest)
	if err != nil {
		return err
	}
	f, err := from.Open(ref)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = to.Save(f, ref.Name)
	if errors.Is(err, fs.ErrExist) { // cut off by a kill, and perhaps incomplete
		if err = to.Remove(onDisk(ref)); err == nil {
			_, err = to.Save(f, ref.Name)
		}
	}
	if err != nil {
		return err
	}
	crash.Point("settle-saved")
	return from.Remove(ref)
}

func (t *tiers) close() error {
	var err error
	if t.hot != nil {
		err = t.hot.Close() // it may have to say that it has failed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.opened {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, t.blocks.Close(), t.dir.Close())
}

// save puts the content of what is open for reading as fd, and has size bytes, away: into the hot buffer, or under a name in the tier in use or, if that
// fails, in the next one that works.
func (t *tiers) save(fd int, size int64, name func() string) (strategy.Ref, error) {
	if ref, ok := t.hot.Save(fd, size); ok {
		t.saved.add(string(ref.Tier), ref.Size)
		return ref, nil
	}
	f, err := dupFile(fd)
	if err != nil {
		return strategy.Ref{}, err
	}
	defer f.Close()
	ref, err := t.saveInTier(f, name())
	if err == nil {
		t.saved.add(string(ref.Tier), ref.Size)
	}
	return ref, err
}

// dupFile gives a file that shares what fd has open.
func dupFile(fd int) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), "source"), nil
}
