package fs

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// shelfIno is in the inode numbers that the shelf gives, to which it adds those of Tree.NewNum: neither filesystems nor branches have such.
const shelfIno = 1 << 63

// shelfVolume is the directories of the shelf themselves: .hyperfs, which is its root, and those of each kind in it.
type shelfVolume struct {
	unchangeable
	main   overlay.Volume
	newNum func() uint64
	made   unix.Timespec
	top    *shelfDir
	kinds  map[ShelfKind]*shelfDir
}

// shelfDir is a directory of the shelf.
type shelfDir struct {
	number uint64
	parent *shelfDir // nil for the top
	newNum func() uint64

	// What is in it. open is nil for the top.
	names func() []string
	open  func(name string) (overlay.Volume, func(), error)

	mu      sync.Mutex        // guards what follows
	nums    map[string]uint64 // of names: it grows from each one to the next new one, so it is the cookie too
	changed unix.Timespec
}

func newShelfVolume(of Shelf, tree *overlay.Tree) *shelfVolume {
	v := &shelfVolume{main: tree.Volume(), newNum: tree.NewNum, made: now()}
	v.top = v.dir(nil, func() []string { return []string{string(Branches), string(Checkpoints)} }, nil)
	v.kinds = map[ShelfKind]*shelfDir{
		Branches:    v.dir(v.top, of.Branches, of.Branch),
		Checkpoints: v.dir(v.top, of.Checkpoints, of.Checkpoint),
	}
	v.top.nums = map[string]uint64{}
	for kind, d := range v.kinds {
		v.top.nums[string(kind)] = d.number
	}
	return v
}

func (v *shelfVolume) dir(parent *shelfDir, names func() []string, open func(string) (overlay.Volume, func(), error)) *shelfDir {
	return &shelfDir{number: v.newNum(), parent: parent, newNum: v.newNum, names: names, open: open, changed: v.made}
}

func now() unix.Timespec { return unix.NsecToTimespec(time.Now().UnixNano()) }

func (d *shelfDir) Num() uint64 { return d.number }

func (d *shelfDir) IsDir() bool { return true }

func (d *shelfDir) ino() uint64 { return shelfIno | d.number }

// touch notes that what is in it has changed.
func (d *shelfDir) touch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed = now()
}

func (v *shelfVolume) Root() overlay.Inode { return v.top }

// Forget has nothing to do: the directories are there for as long as the mount is.
func (v *shelfVolume) Forget(overlay.Inode, uint64) {}

// Lookup finds a kind in the top. In these there are other volumes: see shelf.at.
func (v *shelfVolume) Lookup(dir overlay.Inode, name string) (overlay.Inode, overlay.Attr, error) {
	d := v.kinds[ShelfKind(name)]
	if d == nil || dir != v.top {
		return nil, overlay.Attr{}, unix.ENOENT
	}
	a, err := v.GetAttr(d, nil)
	if err != nil {
		return nil, overlay.Attr{}, err
	}
	return d, a, nil
}

// GetAttr gives the attributes: whoever may list the workspace's root may list the shelf, and nobody may write. Of links there is one, which
// means that subdirectories are not counted: such a number could not be right for long.
func (v *shelfVolume) GetAttr(n overlay.Inode, _ overlay.File) (overlay.Attr, error) {
	d := n.(*shelfDir)
	root, err := v.main.GetAttr(v.main.Root(), nil)
	if err != nil {
		return overlay.Attr{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return overlay.Attr{
		Ino: d.ino(), Mode: unix.S_IFDIR | 0o500 | root.Mode&0o555, Nlink: 1, UID: root.UID, GID: root.GID, Blksize: root.Blksize,
		Atime: d.changed, Mtime: d.changed, Ctime: d.changed, Btime: v.made,
	}, nil
}

func (v *shelfVolume) Statfs() (unix.Statfs_t, error) { return v.main.Statfs() }

func (v *shelfVolume) OpenDir(n overlay.Inode) (overlay.Dir, error) {
	d := n.(*shelfDir)
	up := d.parent
	l := &shelfListing{dir: d, entries: []overlay.DirEntry{{Name: ".", Ino: d.ino(), Type: unix.S_IFDIR, Off: 1}}}
	if up != nil {
		l.add("..", up.ino(), 2)
	} else {
		root, err := v.main.GetAttr(v.main.Root(), nil)
		if err != nil {
			return nil, err
		}
		l.add("..", root.Ino, 2)
	}
	d.list(l.add)
	slices.SortFunc(l.entries, func(a, b overlay.DirEntry) int { return cmp.Compare(a.Off, b.Off) })
	return l, nil
}

// list calls add for all names, and gives a number to those that are new. The inode number is not that of the volume's root, as with the
// directory that something is mounted on: that one would have to be opened for it.
func (d *shelfDir) list(add func(name string, ino, num uint64)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := d.names() // with the lock held, as a name that an older list lacks would get another number
	nums := make(map[string]uint64, len(names))
	for _, name := range names {
		if !possible(name) {
			continue
		}
		num := d.nums[name]
		if num == 0 {
			num = d.newNum()
		}
		nums[name] = num
		add(name, shelfIno|num, num)
	}
	d.nums = nums
}

// possible reports whether a file can have the name.
func possible(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= unix.NAME_MAX && !strings.ContainsAny(name, "/\x00")
}

// shelfListing is an open directory of the shelf: what was there when it was opened, in the order of the cookies.
type shelfListing struct {
	dir     *shelfDir
	entries []overlay.DirEntry
}

func (l *shelfListing) add(name string, ino, cookie uint64) {
	l.entries = append(l.entries, overlay.DirEntry{Name: name, Ino: ino, Type: unix.S_IFDIR, Off: cookie})
}

func (l *shelfListing) Inode() overlay.Inode { return l.dir }

func (l *shelfListing) Next(off uint64) (overlay.DirEntry, bool, error) {
	i, _ := slices.BinarySearchFunc(l.entries, off+1, func(e overlay.DirEntry, off uint64) int { return cmp.Compare(e.Off, off) })
	if i == len(l.entries) {
		return overlay.DirEntry{}, false, nil
	}
	return l.entries[i], true, nil
}

func (l *shelfListing) Fsync(bool) error { return nil }

func (l *shelfListing) Release() {}
