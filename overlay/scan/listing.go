package scan

import (
	"context"
	"runtime"
	"sync"
)

// listing is what a directory holds: the names, sorted, and what stat(2) tells of each. Nearly all that a scan of an unchanged
// tree costs is to get it, so that all processors do.
type listing struct {
	names []string
	stats []stat     // a zero mode where it could not be had
	subs  []*listing // of directories; nil where it could not be had, or must not
}

// at gives what is known of the name k.
func (l *listing) at(k int) (st *stat, sub *listing) {
	if l.stats[k].mode == 0 {
		return nil, nil
	}
	return &l.stats[k], l.subs[k]
}

// lister makes the listings of a whole tree.
type lister struct {
	ctx     context.Context
	foreign func(*stat) bool // tells directories that are left out
	spare   chan struct{}    // has room for as many as may help
	buffers sync.Pool
}

// listerBuffer is how many bytes of a directory are read at once.
const listerBuffer = 32 << 10

func newLister(ctx context.Context, foreign func(*stat) bool) *lister {
	return &lister{
		ctx: ctx, foreign: foreign, spare: make(chan struct{}, min(runtime.GOMAXPROCS(0), 8)-1),
		buffers: sync.Pool{New: func() any { return new([listerBuffer]byte) }},
	}
}

// list gives the listing of d with all that is below it, but for one name in d itself. What cannot be read is left for
// the scan to find out.
func (l *lister) list(d dir, without string) *listing {
	if l.ctx.Err() != nil {
		return nil
	}
	buf := l.buffers.Get().(*[listerBuffer]byte)
	names, err := d.names(buf[:])
	l.buffers.Put(buf)
	if err != nil {
		return nil
	}
	all := &listing{names: names, stats: make([]stat, len(names)), subs: make([]*listing, len(names))}
	var helpers sync.WaitGroup
	defer helpers.Wait()
	for k, name := range names {
		if name == without {
			continue
		}
		st, err := d.stat(name)
		if err != nil {
			continue
		}
		all.stats[k] = st
		if !st.isDir() || l.foreign(&st) {
			continue
		}
		sub, err := d.sub(name)
		if err != nil {
			continue
		}
		select {
		case l.spare <- struct{}{}:
			helpers.Go(func() {
				all.subs[k] = l.closing(sub)
				<-l.spare
			})
		default:
			all.subs[k] = l.closing(sub)
		}
	}
	return all
}

func (l *lister) closing(d dir) *listing {
	defer d.close()
	return l.list(d, "")
}
