package test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/internal/ignore"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/test/ops"
)

// model is a plain directory that must always agree with a tree under test. The kernel is right: an operation on the tree must do what the same
// operation does to the directory.
type model struct {
	name string // of its directories, of which there is one at a time
	made int    // numbers them
	past *past

	// freeNlink says that names count which a rollback has put aside with a new directory, until they are collected.
	freeNlink bool

	dir    string
	fs     *ops.DirFS
	mapped map[int]bool // handles that have a mapping
	*ops.Executor
}

// past is where the states of models are kept that they may go back to.
type past struct {
	dir      string // of the models; on the filesystem of the workspace, whose errors they must give
	contents treestate.Contents
}

// moment is what a checkpoint must bring back.
type moment struct {
	id      string
	capture treestate.State // of the tree under test
	model   treestate.State // its contents are kept

	rules  []*ignore.Rules   // in use since then
	inodes map[string]uint64 // of the tree under test; only where something is ignored

	// What a rollback from here has done: undo takes it back, in ignored places too.
	changed map[string]bool // paths that had something else, or nothing, before
	taken   map[uint64]bool // inodes that were at such a path
}

// keepAtMost is how many bytes of contents may be kept before those are dropped that no checkpoint has.
const keepAtMost = 32 << 20

// newModel makes a model that is like a directory.
func (p *past) newModel(name, like string) (*model, error) {
	m := &model{name: name, past: p}
	dir := m.next()
	if err := treestate.Copy(like, dir); err != nil {
		return nil, err
	}
	return m, m.follow(dir)
}

// newModelAt makes a model that is what it was at a moment.
func (p *past) newModelAt(name string, at treestate.State) (*model, error) {
	m := &model{name: name, past: p}
	return m, m.become(at)
}

// next gives the name of the directory that comes after this one.
func (m *model) next() string {
	m.made++
	return filepath.Join(m.past.dir, fmt.Sprintf("%s-%d", m.name, m.made))
}

// follow makes a directory the model's own.
func (m *model) follow(dir string) (err error) {
	if m.fs != nil {
		err = m.close()
	}
	m.dir, m.mapped = dir, map[int]bool{}
	if err == nil {
		m.fs, err = ops.OpenDirFS(dir)
	}
	m.Executor = ops.NewExecutor(m.fs)
	return err
}

// become brings the model to what it was. No handle stays open.
func (m *model) become(s treestate.State) error {
	dir := m.next()
	if err := s.Make(dir, m.past.contents.Fill); err != nil {
		return err
	}
	return m.follow(dir)
}

func (m *model) close() error {
	return errors.Join(m.CloseHandles(), m.fs.Close(), treestate.Remove(m.dir))
}

// CloseHandles closes all handles.
func (m *model) CloseHandles() error {
	m.mapped = map[int]bool{}
	return m.Executor.CloseHandles()
}

// follows executes an operation on the model too, whose result on the tree was err.
func (m *model) follows(o ops.Op, err error) error {
	got, want := ops.ErrnoName(err), ops.ErrnoName(m.Apply(o))
	if o.Kind == ops.HMap && want == "ok" {
		m.mapped[o.Handle] = true
	}
	if o.Kind == ops.HClose {
		delete(m.mapped, o.Handle)
	}
	if want != got {
		return fmt.Errorf("the subject says %s, the plain directory %s", got, want)
	}
	return nil
}

// now gives what a checkpoint made now must bring back, and proves that the tree, of which there is a capture, is what the model is.
func (m *model) now(capture treestate.State) (*moment, error) {
	s, err := treestate.Capture(m.dir, treestate.Options{Contents: &m.past.contents})
	if err != nil {
		return nil, err
	}
	return &moment{capture: capture, model: s}, m.differs(s, capture)
}

// compare proves that the tree, of which there is a capture, is what the model is.
func (m *model) compare(capture treestate.State) error {
	s, err := treestate.Capture(m.dir, treestate.Options{})
	if err != nil {
		return err
	}
	return m.differs(s, capture)
}

// differs leaves holes out: XFS allocates ahead, in files of the same history not by the same amount.
func (m *model) differs(model, tree treestate.State) error {
	if diff := (treestate.Compare{Mtime: sameKindOfMtime, Nlink: !m.freeNlink}).Diff(model, tree); len(diff) > 0 {
		return fmt.Errorf("the live tree is not what the same operations make of a plain directory:\n\t%s", strings.Join(diff, "\n\t"))
	}
	return nil
}

// sameKindOfMtime compares mtimes that operations set. Those that came about are different on both sides.
func sameKindOfMtime(a, b treestate.Entry) bool {
	if a.Mtime < ops.ExplicitEnd || b.Mtime < ops.ExplicitEnd {
		return a.Mtime == b.Mtime
	}
	return true
}

// view lists what exists, for a generator.
func (m *model) view() (ops.View, error) {
	v, err := viewOf(m.dir)
	v.Handles = m.Handles()
	slices.Sort(v.Handles)
	for _, h := range v.Handles {
		if m.mapped[h] {
			v.Mapped = append(v.Mapped, h)
		}
	}
	return v, err
}

// viewOf lists what exists below dir.
func viewOf(dir string) (ops.View, error) {
	var v ops.View
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrPermission):
			return nil // nothing is known of what is in it
		case err != nil:
			return err
		case p == dir:
			return nil
		}
		rel := p[len(dir)+1:]
		switch {
		case rel == treestate.StoreName:
			return fs.SkipDir
		case d.IsDir():
			v.Dirs = append(v.Dirs, rel)
		case d.Type().IsRegular():
			v.Files = append(v.Files, rel)
		default:
			v.Others = append(v.Others, rel)
		}
		return nil
	})
	for _, list := range [][]string{v.Dirs, v.Files, v.Others} {
		slices.Sort(list)
	}
	return v, err
}

// newPast makes the directory of models in dir.
func newPast(dir string) (*past, error) {
	p := &past{dir: filepath.Join(dir, "models")}
	return p, os.Mkdir(p.dir, 0o700)
}

// thin drops the contents that none of the moments has, if there are many.
func (p *past) thin(moments []*moment) {
	if p.contents.Size() < keepAtMost {
		return
	}
	var states []treestate.State
	for _, m := range moments {
		if m != nil {
			states = append(states, m.model)
		}
	}
	p.contents.KeepOnly(states...)
}
