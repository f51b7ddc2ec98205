package fs

import (
	"cmp"
	"crypto/rand"
	"slices"
	"strings"
	"sync"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

const (
	// maxActs is how many events one rollback raises at most. A program that does not read loses events after 16,384 by default
	// (fs.inotify.max_queued_events), and is told then to look for itself.
	maxActs = 10_000
	// errandActs is how many acts an errand has at most: the echo is in the mount for as long as one lasts.
	errandActs = 64
)

// verb says what an act looks like to those who watch.
type verb uint8

const (
	actRemove verb = iota // IN_DELETE of a name
	actAdd                // IN_CREATE of a name
	actModify             // IN_MODIFY of what a name means
	actAttrib             // IN_ATTRIB of what a name means
)

// act is one call of the echo.
type act struct {
	Verb verb
	Dir  bool // it looks like that of a directory
	Name string
}

// order is an errand as the echo is told of it.
type order struct {
	Root  string // where the mount is
	Proof string // a name in there which gives ENOTUNIQ, if this is the mount and the echo is known to it
	Path  string // of the directory
	Acts  []act
}

// result is what the echo has to say.
type result struct {
	Fault  string // why it could do nothing at all
	Raised int    // how many acts were done
}

// errand is what the echo has to do in one directory.
type errand struct {
	s     *filesystem
	dir   uint64 // the node
	path  string // from the root of the mount
	proof string
	acts  []act
	done  chan struct{} // closed at the end; may be nil

	mu     sync.Mutex
	at     map[string]int    // of a name: the index of its next act that changes the directory; guarded by mu
	stands map[string]uint64 // of a name: the stand-in that the echo was given for this act; guarded by mu
	stale  map[string]bool   // of a name: that the kernel was asked to look again; guarded by mu
}

func (x *errand) order(mountpoint string) order {
	x.proof = overlay.StoreName + ".echo." + rand.Text()
	return order{Root: mountpoint, Proof: x.proof, Path: x.path, Acts: x.acts}
}

// adds reports whether a name comes to mean something else, so that it is there in truth.
func (x *errand) adds(name string) bool {
	return slices.Contains(x.acts, act{actAdd, false, name}) || slices.Contains(x.acts, act{actAdd, true, name})
}

// due gives the act that is next for a name, if it changes the directory.
func (x *errand) due(dir uint64, name string) (act, bool) {
	if dir != x.dir {
		return act{}, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := x.at[name]; i < len(x.acts); i++ {
		if a := x.acts[i]; a.Name == name && a.Verb <= actAdd {
			x.at[name] = i
			return a, true
		}
	}
	return act{}, false
}

// did notes that the act that was due for a name is done.
func (x *errand) did(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.at[name]++
	delete(x.stands, name)
}

// given reports whether the echo has been given a stand-in for a name, and if not, whether that is so for the first time.
func (x *errand) given(name string) (given, first bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	given, first = x.stands[name] != 0, !x.stale[name]
	x.stale[name] = true
	return given, first
}

// standIn gives the number of the inode that stands in for a name.
func (x *errand) standIn(name string) uint64 {
	num := x.s.newNum()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stands[name] == 0 {
		x.stands[name] = num
	}
	return x.stands[name]
}

// errandsOf tells what is to be done so that programs hear of effects. Only what the kernel holds can be watched: so nothing is done for names in
// directories that it does not know, nor for inodes where it knows neither them nor their directory.
func (s *filesystem) errandsOf(effects []overlay.Effect) []*errand {
	byDir := map[uint64]*errand{}
	var all []*errand
	for i := range effects {
		e := &effects[i]
		if e.Dir == nil {
			continue
		}
		num := e.Dir.Num()
		x := byDir[num]
		if x == nil {
			at, ok := s.watchedAt(e)
			if !ok {
				continue
			}
			x = &errand{s: s, dir: num, path: strings.Trim(at+"/"+e.Path, "/")}
			byDir[num] = x
			all = append(all, x)
		}
		x.acts = append(x.acts, actsOf(e)...)
	}
	// A directory comes before what is in it, as when it is made.
	slices.SortStableFunc(all, func(a, b *errand) int { return cmp.Compare(a.path, b.path) })
	return split(all)
}

// watchedAt gives where the volume of an effect is, from the root of the mount. It is false if nobody can watch what it is about.
func (s *filesystem) watchedAt(e *overlay.Effect) (path string, ok bool) {
	if path, ok = s.placeOf(e.Dir); !ok && e.Inode != nil {
		path, ok = s.placeOf(e.Inode)
	}
	return path, ok
}

// placeOf gives where the volume of an inode is, from the root of the mount. It is false if the kernel does not know the inode.
func (s *filesystem) placeOf(n overlay.Inode) (path string, ok bool) {
	if n == s.main.root {
		return "", true
	}
	in, ok := s.nodes.use(n.Num())
	if !ok {
		return "", false
	}
	defer in.vol.let()
	if in.vol.gone() {
		return "", false
	}
	if in.vol.loan == nil {
		return "", in.vol == s.main
	}
	at := in.vol.loan.at
	for kind, d := range s.shelf.dirs.kinds {
		if d == at.dir {
			return overlay.StoreName + "/" + string(kind) + "/" + at.name, true
		}
	}
	return "", false
}

// actsOf tells what is to be done for one effect.
func actsOf(e *overlay.Effect) (acts []act) {
	if e.Was != 0 {
		acts = append(acts, act{actRemove, e.Was == unix.S_IFDIR, e.Name})
	}
	if e.Is != 0 {
		acts = append(acts, act{actAdd, e.Is == unix.S_IFDIR, e.Name})
	}
	if e.Content {
		acts = append(acts, act{actModify, false, e.Name})
	}
	if e.Attr {
		acts = append(acts, act{actAttrib, false, e.Name})
	}
	return acts
}

// split makes errands of a handy size. Of more acts than programs could take in, each directory keeps those for one name, which is enough for
// who looks at it anew then.
func split(all []*errand) []*errand {
	total := 0
	for _, x := range all {
		total += len(x.acts)
	}
	var handy []*errand
	for _, x := range all {
		if total > maxActs {
			x.acts = x.acts[:together(x.acts, 1)]
		}
		for len(x.acts) > 0 {
			k := together(x.acts, errandActs)
			handy = append(handy, &errand{
				s: x.s, dir: x.dir, path: x.path, acts: x.acts[:k:k], at: map[string]int{}, stands: map[string]uint64{}, stale: map[string]bool{},
			})
			x.acts = x.acts[k:]
		}
	}
	return handy
}

// together gives how many acts to take from the front: about max, with all that concern the last one's name.
func together(acts []act, max int) int {
	k := min(max, len(acts))
	for k < len(acts) && acts[k].Name == acts[k-1].Name {
		k++
	}
	return k
}
