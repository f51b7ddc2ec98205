package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
)

// OpenDir tells the kernel that directories need no opening: from then on it caches listings for good and opens none (see
// FUSE_NO_OPENDIR_SUPPORT in linux/fuse.h). An older one asks each time.
func (s *filesystem) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if s.noOpenDir {
		return fuse.ENOSYS
	}
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	if n.vol.owned {
		out.OpenFlags = fuse.FOPEN_CACHE_DIR | fuse.FOPEN_KEEP_CACHE
	}
	return fuse.OK
}

// ReleaseDir has nothing to do: handles of directories mean nothing.
func (s *filesystem) ReleaseDir(*fuse.ReleaseIn) {}

func (s *filesystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.list(in, func(l *listing, _ node, e *overlay.DirEntry) bool {
		l.known = known{}
		return out.AddDirEntry(fuse.DirEntry{Name: e.Name, Ino: e.Ino, Mode: e.Type, Off: e.Off})
	})
}

// ReadDirPlus lists a directory and looks up each entry that fits into the reply, unless the kernel was told of it just now.
func (s *filesystem) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	since := s.invalidated.Load()
	var filled []*fuse.EntryOut
	st := s.list(in, func(l *listing, dir node, e *overlay.DirEntry) bool {
		entry := out.AddDirLookupEntry(fuse.DirEntry{Name: e.Name, Ino: e.Ino, Mode: e.Type, Off: e.Off})
		if entry == nil {
			return false
		}
		if e.Name == "." || e.Name == ".." || l.known.next() && dir.vol.cache == forGood {
			return true
		}
		if s.lookupInto(entry, dir, e.Name, since) {
			filled = append(filled, entry)
		}
		return true
	})
	if s.invalidated.Load() != since {
		for _, entry := range filled {
			entry.SetAttrTimeout(0)
		}
	}
	return st
}

// lookupInto fills the entry of a listing. One that is left empty, with node ID 0, is just listed: the kernel
// looks it up when it wants it. So are all of the shelf: who lists branches need not have them all opened.
func (s *filesystem) lookupInto(entry *fuse.EntryOut, dir node, name string, since uint64) bool {
	if s.shelf != nil && dir.vol == s.shelf.vol {
		return false
	}
	n, a, err := s.lookup(dir, name)
	if err != nil {
		return false
	}
	defer n.vol.let()
	s.fillEntry(entry, n, &a, since)
	return true
}

// list calls add for each entry from the request's cookie on, until it says that there is no more room.
func (s *filesystem) list(in *fuse.ReadIn, add func(l *listing, dir node, e *overlay.DirEntry) bool) fuse.Status {
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	l, err := s.listings.take(n)
	if err != nil {
		return status(err)
	}
	l.known.seek(in.Offset, s.invalidated.Load())
	off := in.Offset
	for {
		e, ok, err := l.next(off)
		if err != nil && off == in.Offset {
			l.Release()
			return status(err)
		}
		if err != nil || !ok {
			break
		}
		if n.vol.reserved(n.Inode, e.Name) {
			off = e.Off
			continue
		}
		if !add(l, n, &e) {
			l.giveBack(e, off)
			break
		}
		off = e.Off
	}
	l.known.at = off
	if off == in.Offset || n.vol.gone() { // nobody goes on from here
		l.Release()
	} else {
		s.listings.put(l)
	}
	return fuse.OK
}

// FsyncDir makes a directory durable.
func (s *filesystem) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	d, err := n.vol.OpenDir(n.Inode)
	if err != nil {
		return status(err)
	}
	defer d.Release()
	return status(d.Fsync(in.FsyncFlags&fsyncDatasync != 0))
}
