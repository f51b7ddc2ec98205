package checkpoint

import (
	"encoding/binary"
	"sync"

	"github.com/dgraph-io/badger/v4"
)

// synced is how Update commits where every commit has to reach the disk: the database does that. Of a journal, only the head is used: it says what the
// database was given, see metaGiven. The disk may get that later; it is damage that it has to tell, and not a loss of power.
type synced struct {
	db *badger.DB

	order sync.Mutex // held while a commit is handed over, so that they come in the order of their numbers; guards what follows
	given uint64     // by this number the last one was handed over

	head    sync.Mutex // guards what follows; after order
	journal *journal
}

func openSynced(db *badger.DB, dir string, given uint64) (*synced, error) {
	j, err := openJournal(dir, 0)
	if err == nil {
		_, _, err = j.read()
	}
	return &synced{db: db, given: given, journal: j}, err
}

// commit makes writes durable.
func (s *synced) commit(writes []write) error {
	t := s.db.NewTransaction(true)
	defer t.Discard()
	for _, w := range writes {
		var err error
		if w.deleted {
			err = t.Delete(w.key)
		} else {
			err = t.Set(w.key, w.value)
		}
		if err != nil {
			return err
		}
	}
	done := make(chan error, 1)
	given, err := s.handOver(t, done)
	if err != nil {
		return err
	}
	if err := <-done; err != nil {
		return err
	}
	return s.note(given)
}

func (s *synced) handOver(t *badger.Txn, done chan<- error) (given uint64, err error) {
	s.order.Lock()
	defer s.order.Unlock()
	s.given++
	if err := t.Set(metaKey(metaGiven), binary.BigEndian.AppendUint64(nil, s.given)); err != nil {
		return 0, err
	}
	t.CommitWith(func(err error) { done <- err })
	return s.given, nil
}

// note says in the head what the database has by now.
func (s *synced) note(given uint64) error {
	s.head.Lock()
	defer s.head.Unlock()
	h := s.journal.head
	if given <= h.given {
		return nil
	}
	h.given = given
	return s.journal.putHead(h)
}

func (s *synced) close() error { return s.journal.close(true) }
