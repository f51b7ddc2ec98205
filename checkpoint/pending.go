package checkpoint

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/hyperfs/hyperfs/internal/crash"
)

// Limits of what the database does not have yet.
const (
	pendingDelay = 100 * time.Millisecond // after which the database gets it
	pendingMax   = 1 << 20                // bytes, from which on it gets it at once
	pendingStop  = 8 << 20                // bytes, from which on a commit waits for that
)

// pending is what was committed, and is in a journal, but not in the database yet. It is how Update commits unless every commit has to
// reach the disk.
//
// Whoever reads looks here first. A transaction holds on to the sets that were there when it began, and begins to read from the
// database after that: so what is moved from the one to the other meanwhile is seen in one of them.
type pending struct {
	db    *badger.DB
	space *space

	mu       sync.RWMutex // guards what follows
	active   *writeSet    // what commits are added to
	flushing *writeSet    // what the database is being given; nil if nothing is
	next     uint64       // generation of the next journal
	given    uint64       // see metaGiven; changed with flush held too
	spare    *journal

	flush   sync.Mutex    // held while the database is given a set; before mu
	kick    chan struct{} // there is something to give
	full    chan struct{} // there is so much that it should not wait
	stop    chan struct{}
	stopped sync.WaitGroup
}

// writeSet is the last write of each key, in the journal that has them.
type writeSet struct {
	journal *journal
	writes  map[string]write
	reverse map[string]int // how many keys of the index by inode begin with an inode, or with an inode and an epoch; see reverseKey
	bytes   int
}

// newWriteSet makes a set with room for some keys, of the index by inode among them: it need not grow then, which takes long for whoever adds to it just then.
func newWriteSet(j *journal, keys, reverse int) *writeSet {
	return &writeSet{journal: j, writes: make(map[string]write, max(keys, 128)), reverse: make(map[string]int, reverse)}
}

// add takes a write. A key of the index by inode is never deleted by way of here.
func (s *writeSet) add(w write) {
	if _, ok := s.writes[string(w.key)]; !ok && w.key[0] == keyReverse {
		s.reverse[string(w.key[:1+idLen+8])]++
		if len(w.key) > 1+idLen+8 {
			s.reverse[string(w.key[:1+idLen])]++
		}
	}
	s.writes[string(w.key)] = w
	s.bytes += len(w.key) + len(w.value)
}

// metaGiven counts how often the database was given something. It is in the database, written after what was given, and in the heads of the journals,
// written after that: so a database that has less than a journal says has lost something, such as the tail of a log, at which Badger wonders no more than
// at one that was torn.
const metaGiven = "given"

// errLost says that the store has lost commits, though nothing but the process has ended.
var errLost = errors.New("commits are missing that had been written")

// openPending opens the journals, and gives the database what an earlier process has left in them.
func openPending(db *badger.DB, dir string, sp *space, log *slog.Logger) (*pending, error) {
	p := &pending{db: db, space: sp, kick: make(chan struct{}, 1), full: make(chan struct{}, 1), stop: make(chan struct{})}
	var js [2]*journal
	for i := range js {
		var err error
		if js[i], err = openJournal(dir, i); err != nil {
			if i > 0 {
				_ = js[0].f.Close()
			}
			return nil, err
		}
	}
	if err := p.replay(js[:], log); err != nil {
		return nil, errors.Join(err, js[0].f.Close(), js[1].f.Close())
	}
	p.active, p.spare = newWriteSet(js[0], 0, 0), js[1]
	p.stopped.Add(1)
	go p.run()
	return p, nil
}

// replay gives the database what the journals hold, and empties them. Nothing is changed where something is missing.
func (p *pending) replay(js []*journal, log *slog.Logger) error {
	set, err := p.left(js, log)
	if err != nil {
		return err
	}
	// Before all journals have heads, nothing is counted: cut short, this begins anew.
	if err := p.give(set, !slices.ContainsFunc(js, func(j *journal) bool { return j.old })); err != nil {
		return err
	}
	for _, j := range js {
		if err := j.clear(p.next, p.given); err != nil {
			return err
		}
		p.next++
	}
	return nil
}

// left gives what the journals hold, one after the other, once it is proved that nothing is missing. After a loss of power something may be: what it
// means for checkpoints is found out where the workspace is compared with the log.
func (p *pending) left(js []*journal, log *slog.Logger) (*writeSet, error) {
	var err error
	if p.given, err = givenTo(p.db); err != nil {
		return nil, err
	}
	set := newWriteSet(nil, 0, 0)
	var lost error
	sameRun := true
	held := map[*journal][]write{}
	for _, j := range js {
		writes, torn, err := j.read()
		name := filepath.Base(j.f.Name())
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", name, err)
		case p.given > 0 && (j.old || j.head.generation == 0):
			return nil, fmt.Errorf("%s: %w", name, errNoHead)
		case torn:
			lost = fmt.Errorf("%s: %w", name, errLost)
		case j.head.given > p.given:
			lost = fmt.Errorf("the database: %w", errLost)
		}
		sameRun = sameRun && j.head.boot != 0 && j.head.boot == BootID()
		p.next = max(p.next, j.head.generation+1)
		held[j] = writes
	}
	if lost != nil && sameRun {
		return nil, lost
	}
	if lost != nil && log != nil {
		log.Warn("the last commits before the system went down are lost", "where", lost)
	}
	slices.SortFunc(js, func(a, b *journal) int { return cmp.Compare(a.head.generation, b.head.generation) })
	for _, j := range js {
		p.given = max(p.given, j.head.given)
		for _, w := range held[j] {
			set.add(w)
		}
	}
	p.next = max(p.next, 1)
	return set, nil
}

// givenTo reads what a database has of metaGiven.
func givenTo(db *badger.DB) (given uint64, err error) {
	err = db.View(func(t *badger.Txn) error {
		item, err := t.Get(metaKey(metaGiven))
		if errors.Is(err, badger.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return item.Value(func(v []byte) error {
			if len(v) != 8 {
				return errShort
			}
			given = binary.BigEndian.Uint64(v)
			return nil
		})
	})
	return given, err
}

// give has the database take a set, and count that. The caller holds flush, or is alone.
func (p *pending) give(set *writeSet, count bool) error {
	if len(set.writes) == 0 {
		return nil
	}
	if err := p.space.claim(set.bytes, len(set.writes)); err != nil {
		return err
	}
	wb := p.db.NewWriteBatch()
	defer wb.Cancel()
	for _, w := range set.writes {
		var err error
		if w.deleted {
			err = wb.Delete(w.key)
		} else {
			err = wb.Set(w.key, w.value)
		}
		if err != nil {
			return err
		}
	}
	if !count {
		return wb.Flush()
	}
	if err := wb.Set(metaKey(metaGiven), binary.BigEndian.AppendUint64(nil, p.given+1)); err != nil { // the last one: it is in the last piece, if there are several
		return err
	}
	if err := wb.Flush(); err != nil {
		return err
	}
	p.given++
	return nil
}

// gaveDirectly notes that the database has got something past the journals.
func (p *pending) gaveDirectly() error {
	p.flush.Lock()
	defer p.flush.Unlock()
	given := p.given + 1
	err := p.db.Update(func(t *badger.Txn) error {
		return t.Set(metaKey(metaGiven), binary.BigEndian.AppendUint64(nil, given))
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given = given
	h := p.active.journal.head
	h.given = given
	return p.active.journal.putHead(h)
}

// commit makes the writes of a transaction durable against the end of the process, and visible.
func (p *pending) commit(writes []write) error {
	if len(writes) == 0 {
		return nil
	}
	if p.size() >= pendingStop {
		if err := p.settle(); err != nil { // before anything is added: a commit that fails must not be there
			return err
		}
	}
	return p.add(writes)
}

func (p *pending) size() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.active.bytes
}

func (p *pending) add(writes []write) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := len(p.active.writes) == 0
	if err := p.active.journal.append(writes); err != nil {
		return err
	}
	for _, w := range writes {
		p.active.add(w)
	}
	if first {
		p.wake()
	}
	if p.active.bytes >= pendingMax {
		select {
		case p.full <- struct{}{}:
		default:
		}
	}
	return nil
}

func (p *pending) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *pending) run() {
	defer p.stopped.Done()
	for {
		select {
		case <-p.stop:
			return
		case <-p.kick:
		}
		select {
		case <-p.stop:
			return
		case <-p.full:
		case <-time.After(pendingDelay):
		}
		if p.settleIfRoom() != nil { // for lack of space, say: whoever needs it settled is told
			p.wake()
		}
	}
}

// settle returns when the database has all that was committed before. It may use the room that is kept for work that frees some: what was
// committed was let in when there was room.
func (p *pending) settle() error {
	p.space.begin()
	defer p.space.end()
	return p.settleIfRoom()
}

// settleIfRoom is settle where nobody needs it: the journal has what was committed. On a full disk the kept room is not given up for that,
// as whoever fills the disk would take it.
func (p *pending) settleIfRoom() error {
	p.mu.RLock()
	nothing := p.flushing == nil && len(p.active.writes) == 0
	p.mu.RUnlock()
	if nothing {
		return nil
	}
	p.flush.Lock()
	defer p.flush.Unlock()
	for range 2 { // first what an earlier attempt has failed with
		if err := p.space.check(); err != nil {
			return err
		}
		set := p.turn()
		if set == nil {
			return nil
		}
		if err := p.give(set, true); err != nil {
			return err
		}
		crash.Point("journal-given")
		if err := p.gave(set); err != nil {
			return err
		}
	}
	return nil
}

// turn has commits go to the other journal, unless that is in use, and gives the set that the database is to have. The caller holds flush.
func (p *pending) turn() *writeSet {
	p.mu.RLock()
	flushing, journal, keys, reverse := p.flushing, p.spare, len(p.active.writes), len(p.active.reverse)
	p.mu.RUnlock()
	if flushing != nil || keys == 0 {
		return flushing
	}
	next := newWriteSet(journal, keys, reverse) // nobody waits meanwhile, and it may soon hold as much
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushing, p.active, p.spare = p.active, next, nil
	return p.flushing
}

// gave forgets a set that the database has. The journal is emptied first: once nobody waits for the set any more, the database may be
// changed otherwise, and the journal must not bring it back after that.
func (p *pending) gave(set *writeSet) error {
	p.mu.Lock()
	generation := p.next
	p.next++
	p.mu.Unlock()
	if err := set.journal.clear(generation, p.given); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushing, p.spare = nil, set.journal
	return nil
}

// sets gives what a transaction has to look through, the newest first.
func (p *pending) sets() [2]*writeSet {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return [2]*writeSet{p.active, p.flushing}
}

// find gives the last write of a key.
func (p *pending) find(sets [2]*writeSet, key []byte) (w write, ok bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, s := range sets {
		if s == nil {
			continue
		}
		if w, ok = s.writes[string(key)]; ok {
			return w, true
		}
	}
	return w, false
}

// indexed reports whether a key of the index by inode begins with prefix, which is an inode, for one that has a slot behind the
// epoch, or an inode and an epoch.
func (p *pending) indexed(sets [2]*writeSet, prefix []byte) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.ContainsFunc(sets[:], func(s *writeSet) bool { return s != nil && s.reverse[string(prefix)] > 0 })
}

// sync has the disk take the journals.
func (p *pending) sync() error {
	p.mu.RLock()
	var fs []*journal
	for _, s := range []*writeSet{p.flushing, p.active} {
		if s != nil {
			fs = append(fs, s.journal)
		}
	}
	p.mu.RUnlock()
	var err error
	for _, j := range fs {
		err = errors.Join(err, j.f.Sync())
	}
	return err
}

func (p *pending) close() error {
	close(p.stop)
	p.stopped.Wait()
	err := p.settle()
	js := []*journal{p.active.journal}
	if p.spare != nil {
		js = append(js, p.spare)
	}
	if p.flushing != nil {
		js = append(js, p.flushing.journal)
	}
	empty := err == nil
	for _, j := range js {
		err = errors.Join(err, j.close(empty))
	}
	return err
}

// Sync has the disk take everything that was committed before the call, which is of use where Options.Sync is not set. Commits go
// on meanwhile.
//
// What was committed is in the journals, in Badger's logs (.mem), which are mapped files, or in the tables made from these,
// which Badger syncs itself before it removes a log. So a log that has just been removed needs nothing.
func (s *Store) Sync() (err error) {
	if s.pending != nil {
		err = s.pending.sync()
	}
	logs, globErr := filepath.Glob(filepath.Join(s.dir, "db", "*.mem"))
	err = errors.Join(err, globErr)
	for _, name := range logs {
		err = errors.Join(err, syncFile(name))
	}
	return err
}
