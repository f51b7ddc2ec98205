//go:build linux

package overlay

import (
	"container/list"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// dirCache keeps a bounded number of directory descriptors open, the least recently used is closed first. One that is
// in use is not closed. K says which directory one belongs to.
type dirCache[K comparable] struct {
	max int

	mu      sync.Mutex // guards what follows
	entries map[K]*dirEntry[K]
	lru     *list.List // of *dirEntry[K]; the front was used last
}

type dirEntry[K comparable] struct {
	key     K
	fd      int
	users   int
	dropped bool // close it when the last user is done
	place   *list.Element
}

func newDirCache[K comparable](max int) *dirCache[K] {
	return &dirCache[K]{max: max, entries: map[K]*dirEntry[K]{}, lru: list.New()}
}

// get gives the entry of n, in use, or nil.
func (c *dirCache[K]) get(n K) *dirEntry[K] {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[n]
	if e != nil {
		e.users++
		c.lru.MoveToFront(e.place)
	}
	return e
}

// add takes over fd as the descriptor of n and gives its entry, in use. Where n has one already, fd is closed.
func (c *dirCache[K]) add(n K, fd int) *dirEntry[K] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[n]; e != nil {
		_ = unix.Close(fd)
		e.users++
		return e
	}
	e := &dirEntry[K]{key: n, fd: fd, users: 1}
	e.place = c.lru.PushFront(e)
	c.entries[n] = e
	for old := c.lru.Back(); old != nil && c.lru.Len() > c.max; {
		prev := old.Prev()
		if victim := old.Value.(*dirEntry[K]); victim.users == 0 {
			c.remove(victim)
		}
		old = prev
	}
	return e
}

func (c *dirCache[K]) done(e *dirEntry[K]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	if e.dropped && e.users == 0 {
		_ = unix.Close(e.fd)
	}
}

// drop closes the descriptor of n as soon as nobody uses it.
func (c *dirCache[K]) drop(n K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[n]; e != nil {
		c.remove(e)
	}
}

// remove takes an entry out. The caller holds mu.
func (c *dirCache[K]) remove(e *dirEntry[K]) {
	delete(c.entries, e.key)
	c.lru.Remove(e.place)
	e.dropped = true
	if e.users == 0 {
		_ = unix.Close(e.fd)
	}
}

func (c *dirCache[K]) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

func (c *dirCache[K]) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		c.remove(e)
	}
}

// dirRef is the descriptor in use of a directory, or of what reach has reached. Call done once.
type dirRef struct {
	t    *Tree
	e    *dirEntry[*Node] // nil for one that is not in the cache
	h    *Handle          // which fd is borrowed from, or nil
	fd   int              // O_PATH, unless it is a handle's
	owns bool             // done closes fd
}

func (r dirRef) done() {
	switch {
	case r.e != nil:
		r.t.dirs.done(r.e)
	case r.h != nil:
		r.h.returned()
	case r.owns:
		_ = unix.Close(r.fd)
	}
}

// openDirRef gives the descriptor of a directory. The walk starts at the nearest ancestor that is open, takes one
// name at a time, follows no symlink, and proves the identity of what it reached; so neither the length of the path
// nor a concurrent rename matters. ESTALE says that the directory is gone.
func (t *Tree) openDirRef(n *Node) (dirRef, error) {
	if n == t.root {
		return dirRef{t: t, fd: t.rootFd}, nil
	}
	if e := t.dirs.get(n); e != nil {
		return dirRef{t: t, e: e, fd: e.fd}, nil
	}
	for range 8 {
		r, err := t.walkTo(n)
		if err != unix.ESTALE {
			return r, err
		}
	}
	return dirRef{}, unix.ESTALE
}

// step is one hop of a walk.
type step struct {
	node *Node
	name string
	ino  uint64
}

// stepsTo gives the way to n from the nearest directory that is open, or (start is nil then) from the trash.
func (t *Tree) stepsTo(n *Node) (start *Node, base *dirEntry[*Node], fd int, steps []step, err error) {
	t.nodesMu.RLock()
	defer t.nodesMu.RUnlock()
	for ; ; n = n.parent {
		if n == t.root {
			return n, nil, t.rootFd, steps, nil
		}
		if base = t.dirs.get(n); base != nil {
			return n, base, base.fd, steps, nil
		}
		if n.parent == nil {
			if n.trashed {
				return nil, nil, t.trashFd, append(steps, step{n, n.id.String(), n.id.Ino}), nil
			}
			return nil, nil, -1, nil, unix.ESTALE
		}
		steps = append(steps, step{n, n.name, n.id.Ino})
	}
}

func (t *Tree) walkTo(n *Node) (dirRef, error) {
	at, base, fd, steps, err := t.stepsTo(n)
	if err != nil {
		return dirRef{}, err
	}
	cur := dirRef{t: t, e: base, fd: fd}
	keep := len(steps) <= t.dirs.max/4 // a very deep walk would push out everything else
	slices.Reverse(steps)
	for i, s := range steps {
		next := -1
		err := t.within(at, cur.fd, func() (err error) {
			next, err = openDirAt(cur.fd, s.name, s.ino)
			return err
		})
		cur.done()
		at = s.node
		if err != nil {
			return dirRef{}, err
		}
		if keep || i == len(steps)-1 {
			e := t.dirs.add(s.node, next)
			cur = dirRef{t: t, e: e, fd: e.fd}
		} else {
			cur = dirRef{fd: next, owns: true}
		}
	}
	return cur, nil
}

// openDirAt opens a directory that must have the given inode number.
func openDirAt(dirfd int, name string, ino uint64) (int, error) {
	fd, err := unix.Openat(dirfd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
			err = unix.ESTALE
		}
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != ino {
		_ = unix.Close(fd)
		return -1, unix.ESTALE
	}
	return fd, nil
}
