package checkpoint

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Badger writes to mapped files: where the disk is full, that is not an error but the end of the process (SIGBUS). So
// nothing is written to the store unless there is room for all that it might have to write: a log page, and a table of
// the size of the memory that it flushes. For the work that frees space, such as dropping a checkpoint, that room is kept by a file of that size.
// As others may take what room there is just then, the log gets what is about to be written to it beforehand.
const (
	roomNeeded  = 12 << 20 // bytes
	reserveName = "reserve"
)

// Where there was plenty of room, nobody can have filled it a moment later, and a commit need not ask again.
const (
	plenty    = 512 << 20 // bytes
	plentyFor = 10 * time.Millisecond
)

// space knows how much room there is for the store.
type space struct {
	dir     volume // the filesystem of the store's directory
	started time.Time
	logs    string       // the directory of Badger's logs; "" before the database is open
	plenty  atomic.Int64 // until when there is plenty of room, as the time since started in ns

	mu      sync.Mutex // guards what follows
	urgent  int        // calls of Urgent that have not ended
	reserve *os.File   // nil where there was no room for it
	filled  bool       // the reserve has its size
}

func openSpace(dir string) (*space, error) {
	v, err := openVolume(dir)
	if err != nil {
		return nil, err
	}
	s := &space{dir: v, started: time.Now()}
	if f, err := os.OpenFile(filepath.Join(dir, reserveName), os.O_RDWR|os.O_CREATE, 0o600); err == nil {
		s.reserve = f
		s.fill()
	}
	return s, nil
}

func (s *space) close() error {
	if s.reserve != nil {
		_ = s.reserve.Close()
	}
	return s.dir.close()
}

// fill takes the reserve again, as far as there is room.
func (s *space) fill() {
	if s.reserve != nil && !s.filled && s.dir.free() > 2*roomNeeded {
		s.filled = allocate(s.reserve, roomNeeded)
	}
}

// check fails with ENOSPC where there is no room to write to the store.
func (s *space) check() error {
	now := time.Since(s.started)
	if int64(now) < s.plenty.Load() {
		return nil
	}
	free := s.dir.free()
	if free >= plenty {
		s.plenty.Store(int64(now + plentyFor))
	}
	if free >= roomNeeded {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.urgent == 0 {
		return syscall.ENOSPC
	}
	if s.reserve != nil {
		_ = s.reserve.Truncate(0)
		s.filled = false
	}
	if s.dir.free() < roomNeeded/2 {
		return syscall.ENOSPC
	}
	return nil
}

// claim has the log take room for writes of so many bytes, where there is not plenty. It fails with ENOSPC where there is no room for them. A log that is begun anew
// amid the writes gets none.
func (s *space) claim(bytes, writes int) error {
	if s.logs == "" || int64(time.Since(s.started)) < s.plenty.Load() {
		return nil
	}
	logs, err := filepath.Glob(filepath.Join(s.logs, "*.mem"))
	if err != nil || len(logs) == 0 {
		return nil // it is about to be made
	}
	newest := logs[len(logs)-1] // numbers of five digits, in the order of names
	return allocateAhead(newest, int64(bytes)+int64(writes)*logEntry+2*logPage)
}

// What a log needs besides keys and values, in bytes.
const (
	logEntry = 48 // for each write: its header (22 at most), a version (8) and a checksum (4), and as much for the end of a transaction among some hundreds
	logPage  = 4096
)

// checkFor fails with ENOSPC where there is no room for a file of so many bytes, and to write to the store after that.
func (s *space) checkFor(bytes int64) error {
	if err := s.check(); err != nil {
		return err
	}
	if s.dir.free() < roomNeeded+bytes {
		return syscall.ENOSPC
	}
	return nil
}

// begin lets what follows use the reserve, until end.
func (s *space) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.urgent++
}

func (s *space) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.urgent--; s.urgent == 0 {
		s.fill()
	}
}
