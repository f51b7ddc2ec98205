package fs

import (
	"container/list"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
)

// listing is a directory that is being read. It belongs to one request at a time.
type listing struct {
	overlay.Dir
	generation uint64 // of listings, when it was taken or opened

	unread overlay.DirEntry // one that was read and did not fit
	at     uint64           // its cookie
	has    bool             // there is one

	known known
}

// known is how many entries of a listing, from its start, the kernel was told of just now together with what they are. Some programs read a directory twice: rm
// looks first whether there is anything in it.
type known struct {
	entries int
	read    int       // how many were read since the start
	at      uint64    // the cookie of the next one
	when    time.Time // it was told of the first one
	since   uint64    // filesystem.invalidated then
}

// knownLong is how long the kernel can be expected to keep what it was told of the entries of a directory. It may forget them at any time, and asks for each then.
const knownLong = time.Second

// seek says that the listing is read from a cookie on.
func (k *known) seek(off, invalidated uint64) {
	switch {
	case off == 0 && k.since == invalidated && time.Since(k.when) < knownLong:
		k.read = 0
	case off == 0:
		*k = known{when: time.Now(), since: invalidated}
	case off != k.at:
		*k = known{}
	}
}

// next says that the kernel is told of the next entry, and reports whether it knows what that is.
func (k *known) next() bool {
	k.read++
	if k.read <= k.entries {
		return true
	}
	k.entries = k.read
	return false
}

// next gives the entry at a cookie, as Dir.Next does.
func (l *listing) next(off uint64) (overlay.DirEntry, bool, error) {
	if l.has && l.at == off {
		l.has = false
		return l.unread, true, nil
	}
	l.has = false
	return l.Next(off)
}

// giveBack makes e what next gives at off.
func (l *listing) giveBack(e overlay.DirEntry, off uint64) {
	l.unread, l.at, l.has = e, off, true
}

// maxListings is how many directories are kept open between two requests that read them.
const maxListings = 64

// listings are the directories that are being read. The kernel does not open directories, as that would be a round trip
// for each that it has cached: it reads by node and cookie. So one that was read in part is kept for the request that goes on.
// Any can be closed at any time; the next request opens it again at its cookie.
type listings struct {
	mu         sync.Mutex               // guards what follows
	byNum      map[uint64]*list.Element // by overlay.Inode.Num
	lru        *list.List               // of *listing; the front was used last
	generation uint64                   // grows when listings may show what is no more
}

func newListings() *listings {
	return &listings{byNum: map[uint64]*list.Element{}, lru: list.New()}
}

// take gives a listing of n to the caller alone.
func (t *listings) take(n node) (*listing, error) {
	t.mu.Lock()
	generation := t.generation
	e := t.byNum[n.num()]
	if e != nil {
		t.remove(e)
	}
	t.mu.Unlock()
	if e != nil {
		return e.Value.(*listing), nil
	}
	d, err := n.vol.OpenDir(n.Inode)
	if err != nil {
		return nil, err
	}
	return &listing{Dir: d, generation: generation}, nil
}

// put keeps a listing for the next request.
func (t *listings) put(l *listing) {
	t.mu.Lock()
	extra := l
	if num := l.Inode().Num(); l.generation == t.generation && t.byNum[num] == nil {
		t.byNum[num] = t.lru.PushFront(l)
		extra = nil
		if t.lru.Len() > maxListings {
			extra = t.lru.Back().Value.(*listing)
			t.remove(t.lru.Back())
		}
	}
	t.mu.Unlock()
	if extra != nil {
		extra.Release()
	}
}

// remove takes an element out. The caller holds mu.
func (t *listings) remove(e *list.Element) {
	delete(t.byNum, e.Value.(*listing).Inode().Num())
	t.lru.Remove(e)
}

// drop closes the listing of n, if it is kept.
func (t *listings) drop(n overlay.Inode) {
	t.mu.Lock()
	e := t.byNum[n.Num()]
	if e != nil {
		t.remove(e)
	}
	t.mu.Unlock()
	if e != nil {
		e.Value.(*listing).Release()
	}
}

// invalidate drops n's listing, and makes void those that are in use.
func (t *listings) invalidate(n overlay.Inode) {
	t.mu.Lock()
	t.generation++
	for e := t.lru.Front(); e != nil; e = e.Next() {
		e.Value.(*listing).generation = t.generation // these are of other directories, or dropped next
	}
	t.mu.Unlock()
	t.drop(n)
}

// drain closes everything.
func (t *listings) drain() {
	t.mu.Lock()
	all := t.lru
	t.lru, t.byNum = list.New(), map[uint64]*list.Element{}
	t.mu.Unlock()
	for e := all.Front(); e != nil; e = e.Next() {
		e.Value.(*listing).Release()
	}
}
