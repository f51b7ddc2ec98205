package test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/test/ops"
	"golang.org/x/sys/unix"
)

// copySubject is the simplest thing that keeps the promises of a workspace: a checkpoint is a whole copy. It proves that
// the differential test asks for nothing that cannot be had, and, with a defect, that the test finds defects.
type copySubject struct {
	dir    string
	defect defect
	fs     *ops.DirFS
	copies map[string]bool
	undo   string
	n      int
	*ops.Executor
}

// defect is something that a copySubject does wrong.
type defect struct {
	name string
	// apply changes or leaves out an operation.
	apply func(o ops.Op) (ops.Op, bool)
	// restored does harm to a workspace after a rollback.
	restored func(dir string, s treestate.State)
}

func newCopySubject(dir string, d defect) (*copySubject, error) {
	s := &copySubject{dir: dir, defect: d, copies: map[string]bool{}}
	return s, s.open()
}

func (s *copySubject) open() (err error) {
	if s.fs, err = ops.OpenDirFS(s.dir); err == nil {
		s.Executor = ops.NewExecutor(s.fs)
	}
	return err
}

func (s *copySubject) Apply(o ops.Op) error {
	if s.defect.apply != nil {
		var keep bool
		if o, keep = s.defect.apply(o); !keep {
			return nil
		}
	}
	return s.Executor.Apply(o)
}

func (s *copySubject) Capture() (treestate.State, error) {
	return treestate.Capture(s.dir, treestate.Options{Holes: true})
}

func (s *copySubject) Snapshot() (string, error) {
	s.n++
	id := fmt.Sprintf("%s-checkpoint-%d", s.dir, s.n)
	s.copies[id] = true
	return id, treestate.Copy(s.dir, id)
}

func (s *copySubject) Rollback(id string, discard bool) (string, error) {
	if !s.copies[id] {
		return "", errors.New("no such checkpoint")
	}
	old := s.undo
	s.undo = ""
	if !discard {
		var err error
		if s.undo, err = s.Snapshot(); err != nil {
			return "", err
		}
	}
	handles := s.Executor
	err := errors.Join(treestate.Remove(s.dir), treestate.Copy(id, s.dir), s.fs.Close(), s.open())
	s.Executor = handles.With(s.fs)
	if s.defect.restored != nil {
		state, _ := s.Capture()
		s.defect.restored(s.dir, state)
	}
	if old != "" {
		err = errors.Join(err, s.Drop(old))
	}
	return s.undo, err
}

func (s *copySubject) Undo() (string, error) { return s.Rollback(s.undo, false) }

func (s *copySubject) Drop(id string) error {
	delete(s.copies, id)
	return treestate.Remove(id)
}

func (s *copySubject) Promote(id string) error { return s.Drop(id) }

// Explain tells nothing: a copy keeps no log.
func (s *copySubject) Explain(string) ([]overlay.Change, error) { return nil, errors.ErrUnsupported }

func (s *copySubject) GC() error        { return nil }
func (s *copySubject) Check(bool) error { return nil }
func (s *copySubject) Restart() error   { return errors.Join(s.fs.Close(), s.open()) }

func (s *copySubject) Active() (ids []string, err error) {
	for id := range s.copies {
		ids = append(ids, id)
	}
	return ids, nil
}

func (s *copySubject) Close() error { return errors.Join(s.CloseHandles(), s.fs.Close()) }

func (d defect) property(t *testing.T) property {
	return property{
		lower: lower{name: "copies", share: 4, mount: memory, fill: seedTree},
		gen:   everything,
		open:  func(ws string, _ uint32) (subject, error) { return newCopySubject(ws, d) },
	}
}

// memory gives a directory that is fast to copy, where there is one.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hyperfs-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = treestate.Remove(dir) })
	return dir
}

func TestDifferentialWholeCopiesAreLikeAPlainDirectory(t *testing.T) { defect{}.property(t).run(t) }

// defects are one for each respect in which a rollback must be exact.
var defects = []defect{
	{name: "mtime of a directory", restored: func(dir string, s treestate.State) {
		touch(dir, s, treestate.Entry.IsDir)
	}},
	{name: "mtime of a file", restored: func(dir string, s treestate.State) {
		touch(dir, s, treestate.Entry.IsRegular)
	}},
	{name: "hard link broken", restored: func(dir string, s treestate.State) {
		for p, e := range s {
			if e.First != p && e.IsRegular() {
				data, _ := os.ReadFile(dir + "/" + p)
				_ = os.Remove(dir + "/" + p)
				_ = os.WriteFile(dir+"/"+p, data, os.FileMode(e.Mode&0o777))
				return
			}
		}
	}},
	{name: "xattrs lost", restored: func(dir string, s treestate.State) {
		for p, e := range s {
			for name := range e.Xattrs {
				_ = unix.Lremovexattr(dir+"/"+p, name)
			}
		}
	}},
	{name: "setuid lost", restored: func(dir string, s treestate.State) {
		for p, e := range s {
			if e.IsRegular() {
				_ = unix.Chmod(dir+"/"+p, e.Mode&0o777)
			}
		}
	}},
	{name: "exchange that only renames", apply: func(o ops.Op) (ops.Op, bool) {
		o.Flags &^= unix.RENAME_EXCHANGE
		return o, true
	}},
	{name: "truncate that rounds", apply: func(o ops.Op) (ops.Op, bool) {
		if o.Kind == ops.Truncate {
			o.Len &^= 1
		}
		return o, true
	}},
	{name: "mapped write lost", apply: func(o ops.Op) (ops.Op, bool) { return o, o.Kind != ops.HMapWrite }},
	{name: "utimes rounds to microseconds", apply: func(o ops.Op) (ops.Op, bool) {
		o.Time -= o.Time % 1000
		return o, true
	}},
}

func touch(dir string, s treestate.State, which func(treestate.Entry) bool) {
	for p, e := range s {
		if which(e) {
			ts := unix.NsecToTimespec(e.Mtime + 1)
			_ = unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/"+p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
			return
		}
	}
}

func TestDifferentialFindsEverySeededDefect(t *testing.T) {
	for _, d := range defects {
		t.Run(strings.ReplaceAll(d.name, " ", "-"), func(t *testing.T) {
			p := d.property(t)
			base := memory(t)
			for seed := range uint64(60) {
				list, err := p.random(base, seed, sequenceSteps)
				if err == nil {
					continue
				}
				short := reduce(list, func(rest []ops.Op) bool { return p.execute(base, rest) != nil })
				if len(short) > 10 {
					t.Errorf("%d operations are left of a failure that needs fewer", len(short))
				}
				return
			}
			t.Error("the defect was not found")
		})
	}
}
