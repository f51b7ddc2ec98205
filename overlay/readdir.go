//go:build linux

package overlay

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// DirEntry is one entry of a directory.
type DirEntry struct {
	Name string
	Ino  uint64
	Type uint32 // the S_IFMT bits of the mode; 0 where the filesystem does not tell
	Off  uint64 // the cookie of the entry after it
}

// DirHandle is an open directory. Its methods may be called concurrently, but none after Release.
type DirHandle struct {
	t    *Tree
	node *Node
	fd   int

	mu    sync.Mutex // guards what follows
	room  *direntRoom
	buf   []byte // entries that getdents gave, in room
	pos   int    // of the next one in buf
	at    uint64 // its cookie
	ended bool   // there is none at at
}

// direntRoom is what getdents writes to. Directories are listed by the thousand, and few of them at the same time.
type direntRoom [32 << 10]byte

var direntRooms = sync.Pool{New: func() any { return new(direntRoom) }}

// OpenDir opens a directory.
func (t *Tree) OpenDir(n *Node) (*DirHandle, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, err := t.openDirRef(n)
	if err != nil {
		return nil, err
	}
	defer d.done()
	fd, err := unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	t.pin(n)
	t.handleCount.Add(1)
	return &DirHandle{t: t, node: n, fd: fd}, nil
}

// Node gives what the handle has open.
func (d *DirHandle) Node() *Node { return d.node }

// Release closes the handle.
func (d *DirHandle) Release() {
	_ = unix.Close(d.fd)
	if d.room != nil {
		direntRooms.Put(d.room)
		d.room, d.buf = nil, nil
	}
	d.t.handleCount.Add(-1)
	d.t.unpin(d.node)
}

// Fsync makes the directory durable.
func (d *DirHandle) Fsync(datasync bool) error {
	if datasync {
		return unix.Fdatasync(d.fd)
	}
	return unix.Fsync(d.fd)
}

// Next gives the entry at a cookie, "." and ".." among them: 0 is the first, DirEntry.Off leads to the next one. ok is false at the end. Going on in
// order is cheap. Cookies are those of the lower, so they survive other changes of the directory.
func (d *DirHandle) Next(off uint64) (e DirEntry, ok bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if off != d.at || off == 0 && d.room != nil {
		if _, err := unix.Seek(d.fd, int64(off), unix.SEEK_SET); err != nil {
			return e, false, err
		}
		d.buf, d.pos, d.at, d.ended = d.buf[:0], 0, off, false
	}
	for {
		if d.pos == len(d.buf) {
			if err := d.fill(); err != nil || d.ended {
				return e, false, err
			}
		}
		raw := parseDirent(d.buf[d.pos:])
		d.pos += raw.size
		d.at = raw.off
		if d.t.hidden(d.node, raw.name) {
			continue
		}
		return DirEntry{Name: raw.name, Ino: raw.ino, Type: uint32(raw.kind) << 12, Off: raw.off}, true, nil
	}
}

// fill reads the next entries, or finds that there are none.
func (d *DirHandle) fill() error {
	if d.ended {
		return nil
	}
	if d.room == nil {
		d.room = direntRooms.Get().(*direntRoom)
	}
	n, err := unix.Getdents(d.fd, d.room[:])
	if err == unix.ENOENT { // the directory was removed
		n, err = 0, nil
	}
	d.buf, d.pos, d.ended = d.room[:max(n, 0)], 0, n == 0
	return err
}

// rawDirent is struct linux_dirent64 of getdents64(2).
type rawDirent struct {
	ino  uint64
	off  uint64
	size int
	kind byte
	name string
}

func parseDirent(b []byte) rawDirent {
	r := rawDirent{
		ino:  binary.NativeEndian.Uint64(b),
		off:  binary.NativeEndian.Uint64(b[8:]),
		size: int(binary.NativeEndian.Uint16(b[16:])),
		kind: b[18],
	}
	name := b[19:r.size]
	for i, c := range name {
		if c == 0 {
			name = name[:i]
			break
		}
	}
	r.name = string(name)
	return r
}

// eachDirent calls fn for every entry in what getdents gave, until it returns false.
func eachDirent(b []byte, fn func(rawDirent) bool) {
	for len(b) > 0 {
		e := parseDirent(b)
		if !fn(e) {
			return
		}
		b = b[e.size:]
	}
}
