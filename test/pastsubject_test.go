package test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/internal/testfs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
)

// pastSubject is a treeSubject of which some states are pinned at any time. While operations go on, and after them, these must be what they were.
type pastSubject struct {
	*treeSubject
	rand  *rand.Rand
	known map[string]treestate.State // what the checkpoints that Snapshot gave are, as the tree showed it
	rules []*ignore.Rules            // all that were in use

	mu   sync.RWMutex // shared by who reads the states, while nobody opens or closes them
	pins []*pinnedState

	stop    chan struct{}
	reading sync.WaitGroup
	failed  chan error // what the reader in the background has found
}

// pinnedState is one of them.
type pinnedState struct {
	checkpoint.Pin
	want  treestate.State
	state overlay.State
	ids   map[string]checkpoint.ID // of some paths
	path  string                   // of file
	file  overlay.StateFile        // open for long; nil where there is none
}

// maxPins is how many states are pinned at a time.
const maxPins = 5

func newPastSubject(dir string, o treeOptions) (*pastSubject, error) {
	inner, err := newTreeSubject(dir, o)
	if err != nil {
		return nil, err
	}
	s := &pastSubject{treeSubject: inner, rand: rand.New(rand.NewPCG(3, 4)), known: map[string]treestate.State{}, failed: make(chan error, 1)}
	s.start()
	return s, nil
}

// start has the states read in the background.
func (s *pastSubject) start() {
	s.stop = make(chan struct{})
	s.reading.Add(1)
	go func() {
		defer s.reading.Done()
		for {
			select {
			case <-s.stop:
				return
			default:
			}
			if err := s.checkAll(); err != nil {
				select {
				case s.failed <- fmt.Errorf("read meanwhile: %w", err):
				default:
				}
				return
			}
		}
	}()
}

func (s *pastSubject) halt() error {
	close(s.stop)
	s.reading.Wait()
	select {
	case err := <-s.failed:
		return err
	default:
		return nil
	}
}

// Apply implements subject.
func (s *pastSubject) Apply(o ops.Op) error {
	err := s.treeSubject.Apply(o)
	if s.rand.IntN(6) == 0 {
		if e := s.change(); e != nil {
			return fmt.Errorf("pins: %w", e)
		}
	}
	select {
	case e := <-s.failed:
		return e
	default:
		return err
	}
}

// change pins, unpins, opens or closes something.
func (s *pastSubject) change() error {
	active, err := s.Active()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := len(s.pins)
	switch n := s.rand.IntN(10); {
	case n < 5 && k < maxPins && len(active) > 0:
		return s.pin(active[s.rand.IntN(len(active))])
	case n < 6 && k > 0:
		i := s.rand.IntN(k)
		p := s.pins[i]
		s.pins = slices.Delete(s.pins, i, i+1)
		p.close()
		return s.ws.Unpin(p.Pin, func(*checkpoint.Tx) error { return nil })
	case n < 8 && k > 0:
		p := s.pins[s.rand.IntN(k)]
		p.close()
		return p.open(s.ws)
	case k > 0:
		return s.pins[s.rand.IntN(k)].keepFile(s.rand)
	}
	return nil
}

func (s *pastSubject) pin(id string) error {
	want, ok := s.known[id]
	if !ok {
		return nil
	}
	p := &pinnedState{want: want, Pin: checkpoint.Pin{Owner: fmt.Sprint("pin ", s.rand.Uint64())}}
	err := s.ws.Pin(id, p.Owner, func(_ *checkpoint.Tx, c checkpoint.Checkpoint) error { p.Epoch = c.Epoch; return nil })
	if err != nil {
		return err
	}
	s.pins = append(s.pins, p)
	if err := p.open(s.ws); err != nil || len(s.rules) == 0 {
		return err
	}
	if p.want, err = treefs.CaptureState(p.state); err != nil { // what is ignored is what it is now, or was since the checkpoint: only it must stay so
		return fmt.Errorf("the state of %s: %w", id, err)
	}
	diff := treestate.Compare{Holes: true}.Diff(protectedPart(want, s.rules), protectedPart(p.want, s.rules))
	if len(diff) > 0 {
		return fmt.Errorf("what is protected in the state of %s is not what it was:\n\t%s", id, strings.Join(diff, "\n\t"))
	}
	return nil
}

func (p *pinnedState) open(ws *overlay.Workspace) (err error) {
	p.state, err = ws.OpenState(p.Epoch)
	return err
}

func (p *pinnedState) close() {
	if p.file != nil {
		p.file.Close()
		p.file = nil
	}
	p.state.Close()
}

// keepFile opens a file and keeps it open, and remembers the identity of something.
func (p *pinnedState) keepFile(r *rand.Rand) error {
	path := p.want.Paths()[r.IntN(len(p.want))]
	id, err := p.find(path)
	if err != nil {
		return err
	}
	if p.ids == nil {
		p.ids = map[string]checkpoint.ID{}
	}
	p.ids[path] = id
	if p.file == nil && p.want[path].IsRegular() {
		p.path = path
		p.file, err = p.state.Open(id)
	}
	return err
}

func (p *pinnedState) find(path string) (checkpoint.ID, error) {
	id := p.state.Root()
	if path == "." {
		return id, nil
	}
	for _, name := range strings.Split(path, "/") {
		e, err := p.state.Lookup(id, name)
		if err != nil {
			return id, fmt.Errorf("look up %q of %q: %w", name, path, err)
		}
		id = e.ID
	}
	return id, nil
}

// check compares the whole state with what it was.
func (p *pinnedState) check() error {
	got, err := treefs.CaptureState(p.state)
	if err != nil {
		return fmt.Errorf("the state at epoch %d: %w", p.Epoch, err)
	}
	if diff := (treestate.Compare{Nlink: true}).Diff(p.want, got); len(diff) > 0 {
		return fmt.Errorf("the state at epoch %d is not what it was:\n\t%s", p.Epoch, strings.Join(diff, "\n\t"))
	}
	for path, id := range p.ids {
		e, err := treefs.CaptureInode(p.state, id, path)
		if err != nil {
			return fmt.Errorf("by its identity: %w", err)
		}
		e.First = p.want[path].First
		diff := (treestate.Compare{Nlink: true}).Diff(treestate.State{path: p.want[path]}, treestate.State{path: e})
		if len(diff) > 0 {
			return fmt.Errorf("by its identity, at epoch %d:\n\t%s", p.Epoch, strings.Join(diff, "\n\t"))
		}
	}
	if p.file == nil {
		return nil
	}
	sum, err := treefs.SumFile(p.file, p.want[p.path].Size)
	if err == nil && sum != p.want[p.path].Sum {
		err = errors.New("it has another content now")
	}
	if err != nil {
		return fmt.Errorf("%q, which is open for long, at epoch %d: %w", p.path, p.Epoch, err)
	}
	return nil
}

func (s *pastSubject) checkAll() error {
	for i := 0; ; i++ {
		s.mu.RLock()
		if i >= len(s.pins) {
			s.mu.RUnlock()
			return nil
		}
		err := s.pins[i].check()
		s.mu.RUnlock()
		if err != nil {
			return err
		}
	}
}

// Capture implements subject.
func (s *pastSubject) Capture() (treestate.State, error) {
	if err := s.checkAll(); err != nil {
		return nil, err
	}
	return s.treeSubject.Capture()
}

// Snapshot implements subject.
func (s *pastSubject) Snapshot() (string, error) {
	id, err := s.treeSubject.Snapshot()
	if err != nil {
		return id, err
	}
	s.known[id], err = s.fs.Capture()
	return id, err
}

// Restart implements subject. The first question after it is about inodes that nobody has looked up.
func (s *pastSubject) Restart() error {
	if err := s.halt(); err != nil {
		return err
	}
	for _, p := range s.pins {
		p.close()
	}
	if err := s.treeSubject.Restart(); err != nil {
		return err
	}
	if have := s.ws.Pins(); len(have) != len(s.pins) {
		return fmt.Errorf("there are %d pins after the restart, and were %d", len(have), len(s.pins))
	}
	for _, p := range s.pins {
		if err := p.open(s.ws); err != nil {
			return err
		}
		for path, id := range p.ids {
			if _, err := treefs.CaptureInode(p.state, id, path); err != nil {
				return fmt.Errorf("by its identity, after the restart: %w", err)
			}
		}
	}
	s.start()
	return s.checkAll()
}

// Close implements subject. What only pins have kept is free when they are gone.
func (s *pastSubject) Close() error {
	err := s.halt()
	for _, p := range s.pins {
		p.close()
		err = errors.Join(err, s.ws.Unpin(p.Pin, func(*checkpoint.Tx) error { return nil }))
	}
	s.pins = nil
	active, e := s.Active()
	err = errors.Join(err, e)
	for _, id := range active {
		err = errors.Join(err, s.Drop(id))
	}
	_, e = s.ws.GC(context.Background())
	err = errors.Join(err, e)
	if d := s.ws.Diagnostics(); err == nil && d.TrashFiles+d.Backups != 0 {
		err = fmt.Errorf("%d old inodes and %d preimages are left when nothing needs them", d.TrashFiles, d.Backups)
	}
	return errors.Join(err, s.treeSubject.Close())
}

func TestDifferentialPinnedStatesStayWhatTheyWere(t *testing.T) {
	for _, l := range lowers {
		t.Run(l.name, func(t *testing.T) {
			l.share = max(l.share/4, 1)
			p := property{lower: l, gen: everything, open: func(ws string, variant uint32) (subject, error) {
				names := treefs.Options{KeepNames: variant&1 != 0, Direct: variant&2 != 0}
				o := treeOptions{Options: names, Tier: l.tier, Large: variant&4 != 0}
				if variant&3 == 0 || variant&3 == 3 {
					o.Tier += " hot"
				}
				return newPastSubject(ws, o)
			}}
			p.run(t)
		})
	}
}

// ignoringPastSubject is a pastSubject that ignores something, and other things after each restart, if there are several lists.
type ignoringPastSubject struct {
	*pastSubject
	*leaving
}

func (s *ignoringPastSubject) Restart() error {
	s.now = (s.now + 1) % len(s.lists)
	s.o.Ignore = s.lists[s.now]
	return s.pastSubject.Restart()
}

func (s *ignoringPastSubject) changed(id string) ([]overlay.Change, error) {
	d, err := s.ws.Diff(context.Background(), id, "", true)
	return d.Changes, err
}

// TestDifferentialPinnedStatesWithIgnoredPathsStayWhatTheyWere also has all that TestDifferentialIgnoredPathsAreLeft has, with pins: these have ignored paths recorded.
func TestDifferentialPinnedStatesWithIgnoredPathsStayWhatTheyWere(t *testing.T) {
	for _, l := range []lower{
		{name: "pinned-ignored", share: 5, mount: func(t *testing.T) string { return t.TempDir() }, fill: seedTree},
		{name: "pinned-ignored-overlayfs", share: 3, mount: func(t *testing.T) string { return testfs.Tmpfs(t, 1<<30) }, fill: seedTree, overlay: true},
	} {
		t.Run(l.name, func(t *testing.T) {
			gen := func() *ops.Generator {
				g := everything()
				g.Explain = false
				g.NoStaleWrites = true
				return g
			}
			property{lower: l, gen: gen, open: func(ws string, variant uint32) (subject, error) {
				lists := [][]string{ignoreLists[variant&3]}
				if variant&4 != 0 {
					lists = append(lists, ignoreLists[(variant+1)&3], nil)
				}
				past, err := newPastSubject(ws, treeOptions{Options: treefs.Options{Direct: variant&1 != 0}, Tier: l.tier, Ignore: lists[0]})
				if err != nil {
					return nil, err
				}
				s := &ignoringPastSubject{past, &leaving{lists: lists}}
				for i := range lists {
					if r := (&leaving{lists: lists, now: i}).rules(); r != nil {
						past.rules = append(past.rules, r)
					}
				}
				return s, nil
			}}.run(t)
		})
	}
}
