package fs

import (
	"container/list"
	"sync"

	"github.com/hyperfs/hyperfs/overlay"
)

// listing is a directory that is being read. It belongs to one request at a time.
type listing struct {
	overlay.Dir
	generation uint64 // of listings, when it was taken or opened

	unread overlay.DirEntry // one that was read and did not fit
	at     uint64           // its cookie
	has    bool             // there is one
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
