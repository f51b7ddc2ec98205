//go:build linux

package overlay

import (
	"github.com/hyperfs/hyperfs/checkpoint"
	"golang.org/x/sys/unix"
)

// List is State.List.
func (s *state) List(dir checkpoint.ID) (all []DirEntry, err error) {
	dir = s.w.store.Resolve(dir)
	err = s.do(func(q *search) error {
		all, err = s.list(q, dir)
		return err
	})
	return all, err
}

func (s *state) list(q *search, dir checkpoint.ID) ([]DirEntry, error) {
	if err := q.checkKnown(dir); err != nil {
		return nil, err
	}
	var live []DirEntry
	err := s.eachLive(q, dir, func(e DirEntry, id checkpoint.ID) {
		if !id.IsZero() {
			e.Ino = s.w.store.Before(id, s.epoch).Ino
		}
		live = append(live, e)
	})
	if err != nil {
		return nil, err
	}
	changed, err := s.past.Names(dir)
	if err != nil {
		return nil, s.failure("list", err)
	}
	if len(changed) == 0 {
		return live, nil
	}
	all := live[:0]
	for _, e := range live {
		if _, ok := changed[e.Name]; !ok {
			all = append(all, e)
		}
	}
	for name, o := range changed {
		if !o.ID.IsZero() {
			all = append(all, DirEntry{Name: name, Ino: s.w.store.Before(o.ID, s.epoch).Ino, Type: o.Mode & unix.S_IFMT})
		}
	}
	return all, nil
}

// eachLive calls fn for everything that a directory has now and that belongs to the workspace. The ID is zero where nobody had to ask for it: of
// what is no directory.
func (s *state) eachLive(q *search, dir checkpoint.ID, fn func(e DirEntry, id checkpoint.ID)) error {
	d, err := q.openDir(dir)
	if err == errGone {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.done()
	return q.within(dir, d.fd, func() error {
		fd, err := unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		room := direntRooms.Get().(*direntRoom)
		defer direntRooms.Put(room)
		for {
			n, err := unix.Getdents(fd, room[:])
			if err == unix.ENOENT { // the directory was removed
				return nil
			}
			if err != nil || n == 0 {
				return err
			}
			eachDirent(room[:n], func(raw rawDirent) bool {
				err = s.liveEntry(d.fd, dir, raw, fn)
				return err == nil
			})
			if err != nil {
				return err
			}
		}
	})
}

// liveEntry calls fn for one entry. Only directories, and what the filesystem tells no type of, have to be looked at: something else may be mounted there.
func (s *state) liveEntry(dirfd int, dir checkpoint.ID, raw rawDirent, fn func(e DirEntry, id checkpoint.ID)) error {
	if raw.name == "." || raw.name == ".." || dir == s.t.root.id && raw.name == StoreName {
		return nil
	}
	e := DirEntry{Name: raw.name, Ino: raw.ino, Type: uint32(raw.kind) << 12}
	if e.Type != 0 && e.Type != unix.S_IFDIR {
		fn(e, checkpoint.ID{})
		return nil
	}
	var st unix.Statx_t
	err := statAt(dirfd, raw.name, &st)
	if err == unix.ENOENT { // it was moved away or removed just now, and the log has it
		return nil
	}
	if err != nil || s.t.isForeign(&st) {
		return err
	}
	id := s.t.idOf(&st)
	e.Ino, e.Type = st.Ino, uint32(st.Mode)&unix.S_IFMT
	fn(e, id)
	return nil
}

// pastPath is a directory of a state, and its path there.
type pastPath struct {
	id   checkpoint.ID
	path string // "" for the workspace
}

// survey looks through the whole state, but for what is ignored and has none, and notes where everything is. It is for inodes whose identity somebody has kept since before the daemon was started.
func (s *state) survey() error {
	s.surveying.Lock()
	defer s.surveying.Unlock()
	if s.surveyed {
		return nil
	}
	for left := []pastPath{{id: s.t.root.id}}; len(left) > 0; {
		dir := left[len(left)-1]
		left = left[:len(left)-1]
		visit := func(q *search) (err error) {
			left, err = s.surveyDir(q, dir, left)
			return err
		}
		err := s.sharing(visit)
		if err == unix.EACCES && !s.t.privileged {
			err = s.alone(visit)
		}
		if err != nil && err != errLost {
			return err
		}
	}
	s.surveyed = true
	return nil
}

// surveyDir notes what a directory has, and puts the directories that it has or had behind left.
func (s *state) surveyDir(q *search, from pastPath, left []pastPath) ([]pastPath, error) {
	dir, more := from.id, left
	add := func(id checkpoint.ID, name string) {
		if path := below(from.path, name); s.whole || !anyMatches(s.rules, path, true) {
			more = append(more, pastPath{id, path})
		}
	}
	err := s.eachLive(q, dir, func(e DirEntry, id checkpoint.ID) {
		slot := checkpoint.Slot{Dir: dir, Name: e.Name}
		s.saw(e.Ino, slot)
		if o, changed, err := s.past.Slot(slot); err == nil && e.Type == unix.S_IFDIR && (!changed || o.ID == id) {
			add(id, e.Name)
		}
	})
	if err != nil {
		return left, err
	}
	changed, err := s.past.Names(dir)
	if err != nil {
		return left, s.failure("list", err)
	}
	for name, o := range changed {
		if o.Mode&unix.S_IFMT != unix.S_IFDIR || o.ID.IsZero() {
			continue
		}
		if at, ok := s.lastSeen(o.ID.Ino); !ok || at != (checkpoint.Slot{Dir: dir, Name: name}) {
			add(o.ID, name)
		}
	}
	return more, nil
}
