//go:build linux

package merge

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// makeOps puts into an order what leads from ours to the merged tree: first files go, then names are put where they belong, then
// contents and attributes.
func (m *merger) makeOps() error {
	if !m.plan.Clean() {
		return nil
	}
	s := newShuffle(m)
	s.removeFiles()
	if err := s.arrange(); err != nil {
		return err
	}
	ops, err := m.fill()
	if err != nil {
		return err
	}
	m.plan.Ops = append(append(m.plan.Ops, s.ops...), ops...)
	slices.Sort(m.plan.Merged)
	return nil
}

// shuffle follows where nodes are in ours while names are moved.
type shuffle struct {
	m     *merger
	at    map[*node]slot // of what is there
	by    map[slot]*node
	kids  map[*node]int  // how many of these are in a directory
	away  map[*node]bool // moved out of the way
	ops   []Op
	temps int
}

func newShuffle(m *merger) *shuffle {
	s := &shuffle{m: m, at: map[*node]slot{}, by: map[slot]*node{}, kids: map[*node]int{}, away: map[*node]bool{}}
	for _, n := range m.nodes {
		if v := n.v[inOurs]; v != nil {
			s.put(n, v.slot())
		}
	}
	return s
}

func (s *shuffle) put(n *node, to slot) {
	if _, ok := s.at[n]; ok {
		s.drop(n)
	}
	s.at[n], s.by[to] = to, n
	s.kids[to.dir]++
}

func (s *shuffle) drop(n *node) {
	s.kids[s.at[n].dir]--
	delete(s.by, s.at[n])
	delete(s.at, n)
}

// path gives where something is now.
func (s *shuffle) path(n *node) string {
	at := s.at[n]
	if at.dir == nil {
		return "."
	}
	return join(s.path(at.dir), at.name)
}

func (s *shuffle) removeFiles() {
	for _, n := range s.m.nodes {
		if v := n.v[inOurs]; v != nil && !n.alive && !n.isDir() {
			s.remove(n)
		}
	}
}

func (s *shuffle) remove(n *node) {
	s.ops = append(s.ops, Op{Do: Remove, Path: s.path(n), Type: overlay.TypeName(n.v[inOurs].kind())})
	s.drop(n)
}

// arrange makes, moves and removes directories, and moves files. Where nothing can go to its place because something else is there,
// something is moved out of the way, to the root.
func (s *shuffle) arrange() error {
	places, dead := s.pending()
	for len(places) > 0 || len(dead) > 0 {
		n := len(places) + len(dead)
		places = slices.DeleteFunc(places, s.place)
		dead = slices.DeleteFunc(dead, s.removeDir)
		if len(places)+len(dead) < n {
			continue
		}
		if err := s.makeWay(places); err != nil {
			return err
		}
	}
	return nil
}

// pending gives what has to go to another place, parents first, and which directories have to go, children first.
func (s *shuffle) pending() (places, dead []*node) {
	for _, n := range s.m.nodes {
		at, there := s.at[n]
		switch {
		case n.alive && (there && at != n.at || !there && n.isDir()):
			places = append(places, n)
		case !n.alive && there:
			dead = append(dead, n)
		}
	}
	slices.SortFunc(places, func(x, y *node) int { return cmp.Compare(mergedPath(x), mergedPath(y)) })
	slices.SortFunc(dead, func(x, y *node) int { return cmp.Compare(y.path(inOurs), x.path(inOurs)) })
	return places, dead
}

// place puts a node where it belongs if that can be done now.
func (s *shuffle) place(n *node) bool {
	if _, there := s.at[n.at.dir]; !there || s.by[n.at] != nil || s.within(n.at.dir, n) {
		return false
	}
	op := Op{Do: Mkdir, Path: join(s.path(n.at.dir), n.at.name), Type: overlay.TypeName(n.mode)}
	if _, there := s.at[n]; there {
		op.Do, op.From = Rename, s.path(n)
	} else if op.Path != mergedPath(n) {
		return false // it gets its attributes by this path when all is done
	}
	s.ops = append(s.ops, op)
	s.put(n, n.at)
	return true
}

// within reports whether a directory is another one, or below it.
func (s *shuffle) within(dir, above *node) bool {
	for ; dir != nil; dir = s.at[dir].dir {
		if dir == above {
			return true
		}
	}
	return false
}

// removeDir removes a directory if nothing is in it any more.
func (s *shuffle) removeDir(n *node) bool {
	if s.kids[n] > 0 {
		return false
	}
	s.remove(n)
	return true
}

// makeWay moves the first node that still has to move out of the way, to the root under a name of its own. Once all have been
// moved so, directories that have to go are empty, and every place is free.
func (s *shuffle) makeWay(places []*node) error {
	for _, n := range places {
		if _, there := s.at[n]; !there || s.away[n] {
			continue
		}
		to, err := s.freeName()
		if err != nil {
			return err
		}
		s.ops = append(s.ops, Op{Do: Rename, Path: to.name, From: s.path(n), Type: overlay.TypeName(n.mode)})
		s.put(n, to)
		s.away[n] = true
		return nil
	}
	return errs.New(errs.Internal, "merge", mergedPath(places[0]), "it can't be put there")
}

// freeName gives a name in the root that neither tree has.
func (s *shuffle) freeName() (slot, error) {
	root := s.m.byBase["."]
	for {
		s.temps++
		name := ".hyperfs-merge-" + strconv.Itoa(s.temps)
		_, inO, errO := s.m.trees[inOurs].stat(name)
		_, inT, errT := s.m.trees[inTheirs].stat(name)
		if err := cmp.Or(errO, errT); err != nil {
			return slot{}, err
		}
		if to := (slot{root, name}); !inO && !inT && s.by[to] == nil {
			return to, nil
		}
	}
}
