//go:build linux

package overlay

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/hyperfs/hyperfs/strategy"
)

// tiers are the tier that new preimages go to, and those that older ones may be in.
type tiers struct {
	strategy.Strategy
	probes []strategy.Probe
	dir    *os.File
	opts   strategy.Options

	mu     sync.Mutex // guards others
	others map[strategy.Kind]strategy.Strategy
}

func openTiers(kind strategy.Kind, dir *os.File, o strategy.Options) (*tiers, error) {
	s, probes, err := strategy.Open(kind, dir, o)
	if err != nil {
		return nil, err
	}
	return &tiers{Strategy: s, probes: probes, dir: dir, opts: o, others: map[strategy.Kind]strategy.Strategy{}}, nil
}

// of gives the tier that holds a preimage.
func (t *tiers) of(ref strategy.Ref) (strategy.Strategy, error) {
	if ref.Tier == t.Kind() {
		return t.Strategy, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.others[ref.Tier]; s != nil {
		return s, nil
	}
	s, _, err := strategy.Open(ref.Tier, t.dir, t.opts)
	if err != nil {
		return nil, fmt.Errorf("the tier %s that holds a preimage is out of reach: %w", ref.Tier, err)
	}
	t.others[ref.Tier] = s
	return s, nil
}

func (t *tiers) verify(ref strategy.Ref) error {
	s, err := t.of(ref)
	if err != nil {
		return err
	}
	return s.Verify(ref)
}

func (t *tiers) restore(ref strategy.Ref, dst *os.File) error {
	s, err := t.of(ref)
	if err != nil {
		return err
	}
	return s.Restore(ref, dst)
}

func (t *tiers) materialize(ref strategy.Ref, dirfd int, name string, share bool) error {
	s, err := t.of(ref)
	if err != nil {
		return err
	}
	return s.Materialize(ref, dirfd, name, share)
}

func (t *tiers) open(ref strategy.Ref) (*os.File, error) {
	s, err := t.of(ref)
	if err != nil {
		return nil, err
	}
	return s.Open(ref)
}

func (t *tiers) remove(ref strategy.Ref) error {
	s, err := t.of(ref)
	if err != nil {
		return err
	}
	return s.Remove(ref)
}

func (t *tiers) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.Strategy.Close()
	for _, s := range t.others {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, t.dir.Close())
}
