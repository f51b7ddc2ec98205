package scan

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// listing is what a directory holds: the names, sorted, and what stat(2) tells of each. Nearly all that a scan of an unchanged
// tree costs is to get it, so that all processors do.
type listing struct {
	names []string
	stats []stat     // a zero mode where it could not be had
	subs  []*listing // of directories; nil where it could not be had, or must not
	lanes []inside   // what of them is in the scope; nil where all is, or it is not known yet
}

// inside is what lane.enter gives.
type inside struct {
	sub *lane
	in  bool
}

// at gives what is known of the name k.
func (l *listing) at(k int) (st *stat, sub *listing) {
	if l.stats[k].mode == 0 {
		return nil, nil
	}
	return &l.stats[k], l.subs[k]
}

// in gives what of the name k, which leads to what st describes, is in the scope of the directory's lane.
func (l *listing) in(k int, at *lane, st *stat) inside {
	if at == nil {
		return inside{in: true}
	}
	if l.lanes != nil && l.stats[k].mode != 0 {
		return l.lanes[k]
	}
	is := inside{}
	is.sub, is.in = at.enter(l.names[k], st)
	return is
}

// lister makes the listings of a whole tree, or of what is in a scope.
type lister struct {
	ctx     context.Context
	temps   bool             // temporary files of a rollback are wanted also in ignored directories
	foreign func(*stat) bool // tells directories that are left out
	spare   chan struct{}    // has room for as many as may help
	buffers sync.Pool
}

// listerBuffer is how many bytes of a directory are read at once.
const listerBuffer = 32 << 10

func newLister(ctx context.Context, foreign func(*stat) bool, temps bool) *lister {
	return &lister{
		ctx: ctx, foreign: foreign, temps: temps, spare: make(chan struct{}, min(runtime.GOMAXPROCS(0), 8)-1),
		buffers: sync.Pool{New: func() any { return new([listerBuffer]byte) }},
	}
}

// namesIn gives the names in a directory that may be in the scope, sorted. An ignored one is not read for that, unless temps are wanted.
func namesIn(d dir, at *lane, temps bool, buf []byte) ([]string, error) {
	if at == nil || !at.ignored {
		return d.names(buf)
	}
	names := at.names()
	if !temps {
		return names, nil
	}
	all, err := d.names(buf)
	names = append(names, slices.DeleteFunc(all, func(name string) bool { return !isTemp(name) })...)
	slices.Sort(names)
	return names, err
}

// list gives the listing of d, whose lane is at, with all that is below it, but for one name in d itself. What cannot be read is left for
// the scan to find out.
func (l *lister) list(d dir, at *lane, without string) *listing {
	if l.ctx.Err() != nil {
		return nil
	}
	buf := l.buffers.Get().(*[listerBuffer]byte)
	names, err := namesIn(d, at, l.temps, buf[:])
	l.buffers.Put(buf)
	if err != nil {
		return nil
	}
	all := &listing{names: names, stats: make([]stat, len(names)), subs: make([]*listing, len(names))}
	if at != nil {
		all.lanes = make([]inside, len(names))
	}
	var helpers sync.WaitGroup
	missing := false
	defer func() {
		helpers.Wait()
		if missing {
			all.compact()
		}
	}()
	for k, name := range names {
		if name == without {
			continue
		}
		st, err := d.stat(name)
		if err != nil {
			missing = missing || at != nil && at.ignored && isMissing(err)
			continue
		}
		all.stats[k] = st
		below := (*lane)(nil)
		if at != nil {
			is := inside{}
			is.sub, is.in = at.enter(name, &st)
			if all.lanes[k] = is; !is.in {
				continue
			}
			below = is.sub
		}
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
				all.subs[k] = l.closing(sub, below)
				<-l.spare
			})
		default:
			all.subs[k] = l.closing(sub, below)
		}
	}
	return all
}

// compact drops the names that are not there: in an ignored directory they were only asked for.
func (l *listing) compact() {
	n := 0
	for k := range l.names {
		if l.stats[k].mode != 0 {
			l.names[n], l.stats[n], l.subs[n], l.lanes[n] = l.names[k], l.stats[k], l.subs[k], l.lanes[k]
			n++
		}
	}
	l.names, l.stats, l.subs, l.lanes = l.names[:n], l.stats[:n], l.subs[:n], l.lanes[:n]
}

func (l *lister) closing(d dir, at *lane) *listing {
	defer d.close()
	return l.list(d, at, "")
}
