//go:build linux

package overlay

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// saveInTier is save without the hot buffer.
func (t *tiers) saveInTier(f *os.File, name string) (strategy.Ref, error) {
	for {
		s := t.saver()
		start := time.Now()
		ref, err := s.Save(f, name)
		if err == nil {
			t.leaveIfSlow(s, time.Since(start), ref.Size)
			return ref, nil
		}
		if !tierFailed(err) {
			return ref, err
		}
		if ref, err, moved := t.degrade(s, f, name, err); !moved {
			return ref, err
		}
	}
}

// degrade saves in a tier below one that failed, and makes the first that takes the preimage the tier in use. moved says that somebody else has changed
// the tier in use meanwhile. If none takes it, the tier in use stays: it may have been the file's own fault.
func (t *tiers) degrade(from strategy.Strategy, f *os.File, name string, cause error) (_ strategy.Ref, err error, moved bool) {
	t.degrading.Lock()
	defer t.degrading.Unlock()
	if t.saver() != from {
		return strategy.Ref{}, nil, true
	}
	for _, kind := range t.below(from.Kind()) {
		next, err := t.openToSave(kind)
		if err != nil {
			continue
		}
		ref, err := next.Save(f, name)
		if err == nil {
			t.moveTo(next, from.Kind(), cause)
			return ref, nil, false
		}
	}
	return strategy.Ref{}, noTierLeft(cause), false
}

// slowSave and slowRate say when a tier is slow: where saving takes longer than slowSave, and than the size at slowRate bytes per second.
// A healthy disk is a hundred times as fast, also if it is busy.
const (
	slowSave = 3 * time.Second
	slowRate = 1 << 20
)

// leaveIfSlow has what comes next go to another tier if saving size bytes has taken as long as in one that is about to fail, or in RAM that is
// being swapped. What has to survive a reboot is not moved into RAM for that.
func (t *tiers) leaveIfSlow(from strategy.Strategy, took time.Duration, size int64) {
	if took <= t.slowSave+time.Duration(size/slowRate)*time.Second {
		return
	}
	t.degrading.Lock()
	defer t.degrading.Unlock()
	if t.saver() != from {
		return
	}
	for _, kind := range t.below(from.Kind()) {
		if kind.Volatile() {
			continue
		}
		if next, err := t.openToSave(kind); err == nil {
			t.moveTo(next, from.Kind(), fmt.Errorf("it took %s to save %d bytes", took.Round(time.Millisecond), size))
			return
		}
	}
}

// below gives the tiers to move to when one fails, best first.
func (t *tiers) below(kind strategy.Kind) []strategy.Kind {
	all := strategy.Kinds()
	return slices.DeleteFunc(all[slices.Index(all, kind)+1:], func(k strategy.Kind) bool { return t.noRAM && k.Volatile() })
}

// openToSave opens a tier that works. The caller holds degrading.
func (t *tiers) openToSave(kind strategy.Kind) (strategy.Strategy, error) {
	t.mu.RLock()
	s := t.opened[kind]
	t.mu.RUnlock()
	if s != nil {
		return s, nil // if it does not work, Save says so
	}
	s, _, err := strategy.Open(kind, t.dir, t.opts)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if other := t.opened[kind]; other != nil { // for reading, meanwhile
		return other, s.Close()
	}
	t.opened[kind] = s
	return s, nil
}

func (t *tiers) moveTo(next strategy.Strategy, from strategy.Kind, cause error) {
	t.mu.Lock()
	t.current = next
	t.mu.Unlock()
	t.noteDegrade(from, next.Kind(), cause)
}

// noteDegrade tells the user, in the log and in the diagnostics.
func (t *tiers) noteDegrade(from, to strategy.Kind, cause error) {
	t.log.Warn("the tier failed; preimages go to the next one from now on", "tier", from, "next", to, "err", cause)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.degraded = append(t.degraded, Degraded{From: string(from), To: string(to), Reason: cause.Error(), At: time.Now()})
}

// degrades gives what has failed so far.
func (t *tiers) degrades() []Degraded {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.degraded)
}

// tierErrors are what a tier says that can't take a preimage now, whatever the file.
var tierErrors = []error{
	unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.EPERM,
	unix.ENODEV, unix.ENXIO, unix.ESTALE, unix.ENOTCONN,
}

func tierFailed(err error) bool {
	return slices.ContainsFunc(tierErrors, func(target error) bool { return errors.Is(err, target) })
}

// noTierLeft is what the program gets when no tier takes the preimage: there is no room for it, for whatever
// reason. EIO stays: it may be the file that can't be read.
func noTierLeft(err error) error {
	for _, plain := range []error{unix.ENOSPC, unix.EDQUOT, unix.EIO} {
		if errors.Is(err, plain) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", unix.ENOSPC, err)
}
