//go:build linux

package overlay

import (
	"context"
	"os"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// EditOptions say what an edit is based on.
type EditOptions struct {
	Since   string // the checkpoint after which nothing that the edit touches may have changed
	Message string // of the undo checkpoint
	Event   string // the type of the event that tells of it
}

// Editor collects changes to the live tree, by path, that are made all or not at all. Later calls see what earlier ones have done; the
// tree shows nothing of it until the end. Its methods give unix.Errno values as the system calls do. One goroutine may use it at a time.
type Editor struct {
	w *Workspace
	t *Tree

	slots  map[checkpoint.Slot]checkpoint.Occupant // what they shall hold
	inodes map[checkpoint.ID]*edited               // what existing inodes, and new directories, shall be
	staged map[checkpoint.ID]string                // new inodes: their names in the store's tmp directory

	// What the changes depend on: nobody else may have changed it.
	looked map[checkpoint.Slot]bool
	listed map[checkpoint.ID]bool // directories that must not have got anything
	met    map[checkpoint.ID]bool // inodes that were found

	nodes map[checkpoint.ID]*Node // referenced
	refs  []*Node
}

// edited is what becomes of an inode.
type edited struct {
	attr    checkpoint.Attr
	xattrs  []checkpoint.Xattr
	hasX    bool
	content string // a file in the store's tmp directory; "" where it stays
}

// Edit makes the changes that fn asks of the Editor, all or none, as one rollback does: nobody sees half of them, a death of the
// daemon leaves all or none, the kernel is told, and Undo takes them back. Errors of fn come through, and then nothing was changed. BUSY says
// that something that the edit depends on was changed since the checkpoint: what was decided by it must be decided anew.
func (w *Workspace) Edit(ctx context.Context, o EditOptions, fn func(*Editor) error) (RollbackResult, error) {
	leave, err := w.stay(o.Event)
	if err != nil {
		return RollbackResult{}, err
	}
	defer leave()
	w.tree.tempMu.RLock() // what is staged is nobody's rubbish
	defer w.tree.tempMu.RUnlock()
	since, ok := w.find(o.Since)
	if !ok || since.Status != checkpoint.Active {
		return RollbackResult{}, errs.New(errs.NotFound, o.Event, o.Since, "there is no such active checkpoint")
	}
	e := &Editor{
		w: w, t: w.tree,
		slots: map[checkpoint.Slot]checkpoint.Occupant{}, inodes: map[checkpoint.ID]*edited{}, staged: map[checkpoint.ID]string{},
		looked: map[checkpoint.Slot]bool{}, listed: map[checkpoint.ID]bool{}, met: map[checkpoint.ID]bool{},
		nodes: map[checkpoint.ID]*Node{w.tree.identity(w.tree.root): w.tree.root},
	}
	defer e.end()
	if err := fn(e); err != nil {
		return RollbackResult{}, err
	}
	if err := ctx.Err(); err != nil || len(e.slots)+len(e.inodes) == 0 {
		return RollbackResult{}, err
	}
	return e.commit(ctx, since, o)
}

// end gives back what the editor holds, and removes what was staged and not used.
func (e *Editor) end() {
	for _, n := range e.refs {
		e.t.Forget(n, 1)
	}
	for _, name := range e.staged {
		_ = e.t.removeTemp(name)
	}
	for _, i := range e.inodes {
		if i.content != "" {
			_ = e.t.removeTemp(i.content)
		}
	}
}

// pathEnd is what a path leads to.
type pathEnd struct {
	slot checkpoint.Slot
	occ  checkpoint.Occupant // zero where nothing is there
}

// isRoot reports whether it is the root, which stays where it is.
func (f pathEnd) isRoot() bool { return f.slot == checkpoint.Slot{} }

func (f pathEnd) isDir() bool { return f.occ.Mode&unix.S_IFMT == unix.S_IFDIR }

// find walks a workspace-relative path. Only its last name may be missing. "." is the root, which has no slot.
func (e *Editor) find(path string) (pathEnd, error) {
	dir := e.t.identity(e.t.root)
	if path == "." {
		a, err := e.t.GetAttr(e.t.root, nil)
		return pathEnd{occ: checkpoint.Occupant{ID: dir, Mode: a.Mode, Mtime: a.Mtime.Nano()}}, err
	}
	parts := strings.Split(path, "/")
	for i, name := range parts {
		if name == "" || name == "." || name == ".." || strings.IndexByte(name, 0) >= 0 {
			return pathEnd{}, unix.EINVAL
		}
		f, err := e.lookup(checkpoint.Slot{Dir: dir, Name: name})
		switch {
		case err != nil:
			return pathEnd{}, err
		case i == len(parts)-1:
			return f, nil
		case f.occ.ID.IsZero():
			return pathEnd{}, unix.ENOENT
		case !f.isDir():
			return pathEnd{}, unix.ENOTDIR
		}
		dir = f.occ.ID
	}
	return pathEnd{}, unix.EINVAL
}

// lookup gives what a slot will hold.
func (e *Editor) lookup(s checkpoint.Slot) (pathEnd, error) {
	if occ, ok := e.slots[s]; ok {
		return pathEnd{s, occ}, nil
	}
	dir := e.nodes[s.Dir]
	if dir == nil { // a new directory
		return pathEnd{slot: s}, nil
	}
	if e.t.hidden(dir, s.Name) {
		return pathEnd{}, unix.EPERM
	}
	e.looked[s] = true
	n, a, err := e.t.Lookup(dir, s.Name)
	if err == unix.ENOENT {
		return pathEnd{slot: s}, nil
	}
	if err != nil {
		return pathEnd{}, err
	}
	e.refs = append(e.refs, n)
	if n.foreign {
		return pathEnd{}, unix.EROFS
	}
	id := e.t.identity(n)
	e.nodes[id] = n
	e.met[id] = e.met[id] || !n.dir
	return pathEnd{s, checkpoint.Occupant{ID: id, Mode: a.Mode, Size: a.Size, Mtime: a.Mtime.Nano()}}, nil
}

// existing is find for what must be there.
func (e *Editor) existing(path string) (pathEnd, error) {
	f, err := e.find(path)
	if err == nil && f.occ.ID.IsZero() {
		err = unix.ENOENT
	}
	return f, err
}

// vacant is find for what must not be there.
func (e *Editor) vacant(path string) (pathEnd, error) {
	f, err := e.find(path)
	if err == nil && !f.occ.ID.IsZero() {
		err = unix.EEXIST
	}
	return f, err
}

// set makes a slot hold something. What holds nothing and is in a new directory need not be kept.
func (e *Editor) set(s checkpoint.Slot, occ checkpoint.Occupant) { e.slots[s] = occ }

// Remove takes a name away; a directory must be empty.
func (e *Editor) Remove(path string) error {
	f, err := e.existing(path)
	if err != nil {
		return err
	}
	if f.isRoot() {
		return unix.EBUSY
	}
	if f.isDir() {
		if err := e.empty(f.occ.ID); err != nil {
			return err
		}
	}
	e.set(f.slot, checkpoint.Occupant{})
	return nil
}

// empty fails with ENOTEMPTY where a directory will hold something.
func (e *Editor) empty(id checkpoint.ID) error {
	names, err := e.names(id)
	if err == nil && len(names) > 0 {
		err = unix.ENOTEMPTY
	}
	return err
}

// names gives what a directory will hold.
func (e *Editor) names(id checkpoint.ID) (names []string, err error) {
	for s, occ := range e.slots {
		if s.Dir == id && !occ.ID.IsZero() {
			names = append(names, s.Name)
		}
	}
	n := e.nodes[id]
	if n == nil {
		return names, nil
	}
	e.listed[id] = true
	d, err := e.t.OpenDir(n)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	for off := uint64(0); ; {
		entry, ok, err := d.Next(off)
		if err != nil || !ok {
			return names, err
		}
		off = entry.Off
		if entry.Name == "." || entry.Name == ".." {
			continue
		}
		if _, changed := e.slots[checkpoint.Slot{Dir: id, Name: entry.Name}]; !changed {
			names = append(names, entry.Name)
		}
	}
}

// Rename gives what is at one path the other, which must be free.
func (e *Editor) Rename(from, to string) error {
	f, err := e.existing(from)
	if err != nil {
		return err
	}
	if f.isRoot() {
		return unix.EBUSY
	}
	g, err := e.vacant(to)
	if err != nil {
		return err
	}
	if f.isDir() {
		if strings.HasPrefix(to, from+"/") {
			return unix.EINVAL
		}
	}
	return e.move(f, g.slot)
}

// move puts what is at one place in another. A directory that was there before can't be moved on overlayfs: there another one takes its place, which gets
// its attributes and, one by one, its names.
func (e *Editor) move(f pathEnd, to checkpoint.Slot) error {
	occ := f.occ
	if _, fresh := e.staged[occ.ID]; f.isDir() && !fresh && !e.t.canMoveDirs {
		var err error
		if occ, err = e.remake(f.occ.ID, to); err != nil {
			return err
		}
	}
	e.set(f.slot, checkpoint.Occupant{})
	e.set(to, occ)
	return nil
}

// remake makes a directory like another one, which loses all that it holds to it.
func (e *Editor) remake(old checkpoint.ID, to checkpoint.Slot) (checkpoint.Occupant, error) {
	a, xs, err := e.statEdited(old)
	if err != nil {
		return checkpoint.Occupant{}, err
	}
	e.met[old] = true // a change of its attributes would be lost
	delete(e.inodes, old)
	occ, err := e.makeDir(Made{Attr: a, Xattrs: xs}, to)
	if err != nil {
		return occ, err
	}
	names, err := e.names(old)
	if err != nil {
		return occ, err
	}
	for _, name := range names {
		f, err := e.lookup(checkpoint.Slot{Dir: old, Name: name})
		if err == nil {
			err = e.move(f, checkpoint.Slot{Dir: occ.ID, Name: name})
		}
		if err != nil {
			return occ, err
		}
	}
	return occ, nil
}

// makeDir makes a directory for a slot, which gets its attributes when it is filled.
func (e *Editor) makeDir(m Made, at checkpoint.Slot) (checkpoint.Occupant, error) {
	occ, err := e.stage(m)
	if err == nil {
		e.inodes[occ.ID] = &edited{attr: e.attrOf(nil, m.Attr, at), xattrs: m.Xattrs, hasX: true}
	}
	return occ, err
}

// Link gives what is at one path, which is no directory, another name.
func (e *Editor) Link(from, to string) error {
	f, err := e.existing(from)
	if err != nil {
		return err
	}
	if f.isDir() {
		return unix.EPERM
	}
	g, err := e.vacant(to)
	if err != nil {
		return err
	}
	e.set(g.slot, f.occ)
	return nil
}

// Made is what a new inode is to be like. Of attr, type, mode, owner, device and mtime count.
type Made struct {
	Attr   Attr
	Xattrs []checkpoint.Xattr
	Target string                 // of a symlink
	Fill   func(f *os.File) error // writes the content of a regular file; nil leaves it empty
}

// Make makes an inode of any type at a path, which must be free.
func (e *Editor) Make(path string, m Made) error {
	g, err := e.vacant(path)
	if err != nil {
		return err
	}
	var occ checkpoint.Occupant
	if m.Attr.Mode&unix.S_IFMT == unix.S_IFDIR {
		occ, err = e.makeDir(m, g.slot)
	} else {
		occ, err = e.stage(m)
	}
	if err == nil {
		e.set(g.slot, occ)
	}
	return err
}

// Put changes the content and all attributes of the regular file at a path. Its other names get them too.
func (e *Editor) Put(path string, m Made) error {
	f, err := e.existing(path)
	if err != nil {
		return err
	}
	if f.occ.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EINVAL
	}
	if alone, err := e.hasOneName(f.occ.ID); err != nil {
		return err
	} else if alone && e.mayReplace(f.occ.ID) {
		occ, err := e.stage(m) // no old bytes have to be kept then: the old file is
		if err == nil {
			e.set(f.slot, occ)
		}
		return err
	}
	name, _, err := e.stageFile(m)
	if err != nil {
		return err
	}
	if old := e.inodes[f.occ.ID]; old != nil && old.content != "" {
		_ = e.t.removeTemp(old.content)
	}
	e.inodes[f.occ.ID] = &edited{attr: e.attrOf(e.nodes[f.occ.ID], m.Attr, f.slot), xattrs: m.Xattrs, hasX: true, content: name}
	return nil
}

// mayReplace reports whether another inode can have the owner that an inode has.
func (e *Editor) mayReplace(id checkpoint.ID) bool {
	n := e.nodes[id]
	if n == nil || e.t.privileged {
		return true
	}
	a, err := e.t.GetAttr(n, nil)
	return err == nil && e.t.mayGive(a.UID, a.GID)
}

// SetAttr changes mode, owner, mtime and xattrs of what is at a path.
func (e *Editor) SetAttr(path string, a Attr, xs []checkpoint.Xattr) error {
	f, err := e.existing(path)
	if err != nil {
		return err
	}
	a.Mode = f.occ.Mode&unix.S_IFMT | a.Mode&0o7777
	f.occ.Mode, f.occ.Mtime = a.Mode, a.Mtime.Nano()
	if name, fresh := e.staged[f.occ.ID]; fresh && !f.isDir() {
		if err := e.dress(name, a, xs); err != nil {
			return err
		}
		e.set(f.slot, f.occ)
		return nil
	}
	i := e.inodes[f.occ.ID]
	if i == nil {
		i = &edited{}
		e.inodes[f.occ.ID] = i
	}
	i.attr, i.xattrs, i.hasX = e.attrOf(e.nodes[f.occ.ID], a, f.slot), xs, true
	return nil
}

// attrOf is what a record says of attributes. What an ordinary user can't give away keeps its owner: that of n, or else of what that user makes.
func (e *Editor) attrOf(n *Node, a Attr, at checkpoint.Slot) checkpoint.Attr {
	if !e.t.mayGive(a.UID, a.GID) {
		a.UID, a.GID = uint32(unix.Geteuid()), uint32(unix.Getegid())
		if n != nil {
			if old, err := e.t.GetAttr(n, nil); err == nil {
				a.UID, a.GID = old.UID, old.GID
			}
		}
	}
	return checkpoint.Attr{At: at, Mode: a.Mode, UID: a.UID, GID: a.GID, Rdev: a.Rdev, Size: a.Size, Mtime: a.Mtime.Nano(), Nlink: a.Nlink}
}

// Stat gives the attributes that what is at a path will have, with the xattrs.
func (e *Editor) Stat(path string) (Attr, []checkpoint.Xattr, error) {
	f, err := e.existing(path)
	if err != nil {
		return Attr{}, nil, err
	}
	return e.statEdited(f.occ.ID)
}

// statEdited describes an inode as it will be.
func (e *Editor) statEdited(id checkpoint.ID) (Attr, []checkpoint.Xattr, error) {
	a, xs, err := e.statNow(id)
	if i := e.inodes[id]; i != nil && err == nil {
		a.Mode, a.UID, a.GID, a.Mtime = i.attr.Mode, i.attr.UID, i.attr.GID, unix.NsecToTimespec(i.attr.Mtime)
		if i.hasX {
			xs = i.xattrs
		}
	}
	return a, xs, err
}

// statNow describes an inode as it is, staged or live.
func (e *Editor) statNow(id checkpoint.ID) (a Attr, xs []checkpoint.Xattr, err error) {
	if name, fresh := e.staged[id]; fresh {
		return e.statStaged(name)
	}
	n := e.nodes[id]
	if a, err = e.t.GetAttr(n, nil); err != nil {
		return a, nil, err
	}
	e.t.mu.RLock()
	defer e.t.mu.RUnlock()
	xs, err = e.t.readXattrs(n)
	return a, xs, err
}

func (e *Editor) statStaged(name string) (a Attr, xs []checkpoint.Xattr, err error) {
	fd, err := unix.Openat(e.t.tmpFd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return a, nil, err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := statFd(fd, &st); err != nil {
		return a, nil, err
	}
	xs, err = xattrsOf(procPath(fd))
	return attrOf(&st), xs, err
}

// Read calls fn with the content that the regular file at a path will have.
func (e *Editor) Read(path string, fn func(r ReaderAt) error) error {
	f, err := e.existing(path)
	if err != nil {
		return err
	}
	if f.occ.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EINVAL
	}
	name := e.staged[f.occ.ID]
	if i := e.inodes[f.occ.ID]; i != nil && i.content != "" {
		name = i.content
	}
	if name == "" {
		h, err := e.t.Open(e.nodes[f.occ.ID], unix.O_RDONLY, false, nil)
		if err != nil {
			return err
		}
		defer h.Release()
		return fn(h)
	}
	fd, err := unix.Openat(e.t.tmpFd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	staged := os.NewFile(uintptr(fd), name)
	defer staged.Close()
	return fn(staged)
}

// ReaderAt reads a content. At the end it gives 0 bytes, or io.EOF.
type ReaderAt interface {
	ReadAt(p []byte, off int64) (int, error)
}

// hasOneName reports whether an inode has one name in the live tree, and will have no other.
func (e *Editor) hasOneName(id checkpoint.ID) (bool, error) {
	names := 0
	for _, occ := range e.slots {
		if occ.ID == id {
			names++
		}
	}
	n := e.nodes[id]
	if n == nil {
		return names == 1, nil
	}
	a, err := e.t.GetAttr(n, nil)
	return err == nil && a.Nlink == 1 && names <= 1, err
}

// stage makes a new inode in the store, with everything that it is to have.
func (e *Editor) stage(m Made) (checkpoint.Occupant, error) {
	name, st, err := e.stageFile(m)
	if err != nil {
		return checkpoint.Occupant{}, err
	}
	occ := e.t.occupantOf(&st)
	e.staged[occ.ID] = name
	return occ, nil
}

func (e *Editor) stageFile(m Made) (name string, st unix.Statx_t, err error) {
	name = e.t.tempName()
	defer func() {
		if err != nil {
			_ = e.t.removeTemp(name)
		}
	}()
	if err = e.makeTemp(name, m); err != nil {
		return name, st, err
	}
	if m.Attr.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err = e.dress(name, m.Attr, m.Xattrs); err != nil {
			return name, st, err
		}
	}
	return name, st, statAt(e.t.tmpFd, name, &st)
}

func (e *Editor) makeTemp(name string, m Made) error {
	tmp := e.t.tmpFd
	switch m.Attr.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return unix.Mkdirat(tmp, name, 0o700)
	case unix.S_IFLNK:
		return unix.Symlinkat(m.Target, tmp, name)
	case unix.S_IFREG:
		fd, err := unix.Openat(tmp, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		if m.Fill == nil {
			return nil
		}
		return m.Fill(f)
	}
	return unix.Mknodat(tmp, name, m.Attr.Mode&unix.S_IFMT|0o600, int(m.Attr.Rdev))
}

// dress gives a staged inode its attributes.
func (e *Editor) dress(name string, a Attr, xs []checkpoint.Xattr) error {
	fd, err := unix.Openat(e.t.tmpFd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	want := e.attrOf(nil, a, checkpoint.Slot{})
	if err := applyOwnerAndMode(fd, want); err != nil {
		return err
	}
	if err := applyXattrs(procPath(fd), xs); err != nil {
		return err
	}
	if err := applyOwnerAndMode(fd, want); err != nil { // an ACL changes the mode
		return err
	}
	return setMtime(fd, want.Mtime)
}
