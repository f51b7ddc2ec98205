//go:build linux

package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// Paths that are tracked, or declared as outputs, are protected although the patterns ignore them. The undo log knows nothing of them: it goes by the identity of
// directories, and the ignored ones on the way there may come and go. They are looked at one by one instead, by their paths, whenever an epoch begins; of what has
// changed since the last time a copy is kept in the store's directory tracked/. That makes a checkpoint cost as much as these few files have changed.

// trackedFile is what was at a tracked path. The zero Mode says that nothing was there.
type trackedFile struct {
	Path   string             `json:"path"`
	Mode   uint32             `json:"mode,omitempty"`
	UID    uint32             `json:"uid,omitempty"`
	GID    uint32             `json:"gid,omitempty"`
	Size   int64              `json:"size,omitempty"`
	Mtime  int64              `json:"mtime,omitempty"`
	Target []byte             `json:"target,omitempty"` // of a symlink
	Xattrs []checkpoint.Xattr `json:"xattrs,omitempty"`
	Copy   string             `json:"copy,omitempty"` // of the content of a regular file: its name in tracked/
	Sum    uint64             `json:"sum,omitempty"`  // of that

	ID    checkpoint.ID `json:"id"`
	Ctime int64         `json:"ctime"` // 0 where it may change without a trace
}

func (f *trackedFile) kind() uint32 { return f.Mode & unix.S_IFMT }

// kept reports whether it is of a type that can be put back.
func (f *trackedFile) kept() bool {
	return f.Mode == 0 || f.kind() == unix.S_IFREG || f.kind() == unix.S_IFLNK
}

// trackedFiles are the tracked files of the epochs.
type trackedFiles struct {
	paths   []string                           // that are protected; guarded by Workspace.list
	epochs  map[checkpoint.Epoch][]trackedFile // guarded by Workspace.list
	latest  map[string]trackedFile             // what was kept last of each path: it need not be copied again; guarded by Workspace.list
	dir     *os.File
	nextNum uint64 // of a copy; guarded by Tree.mu held alone
}

// metaTracked is where the tracked files of an epoch are in the store.
func metaTracked(e checkpoint.Epoch) string { return fmt.Sprintf("tracked/%016x", uint64(e)) }

// openTracked reads what earlier processes left.
func (w *Workspace) openTracked() (err error) {
	if w.book, err = OpenContracts(w.store, w.root); err != nil {
		return err
	}
	w.tracked.epochs, w.tracked.latest = map[checkpoint.Epoch][]trackedFile{}, map[string]trackedFile{}
	w.tracked.paths = w.book.Paths()
	if w.tracked.dir, err = w.StoreDir("tracked"); err != nil {
		return err
	}
	err = w.store.View(func(tx *checkpoint.Tx) error {
		for _, c := range w.checkpoints {
			b, err := tx.Meta(metaTracked(c.Epoch))
			if err != nil || b == nil {
				return err
			}
			var list []trackedFile
			if err := json.Unmarshal(b, &list); err != nil {
				return errs.New(errs.Integrity, "open workspace", c.ID, "its tracked files can't be read: %w", err)
			}
			w.tracked.epochs[c.Epoch] = list
		}
		return nil
	})
	for _, e := range slices.Sorted(maps.Keys(w.tracked.epochs)) {
		w.tracked.keep(w.tracked.epochs[e])
	}
	return err
}

// keep notes what was kept last. The caller holds Workspace.list.
func (f *trackedFiles) keep(list []trackedFile) {
	for _, t := range list {
		f.latest[t.Path] = t
	}
}

// used gives the copies that something names. The caller holds Workspace.list, which may be shared.
func (f *trackedFiles) used() map[string]bool {
	used := map[string]bool{}
	for _, t := range f.latest {
		used[t.Copy] = true
	}
	for _, list := range f.epochs {
		for _, t := range list {
			used[t.Copy] = true
		}
	}
	return used
}

// protectedPaths gives the paths to look at: those that the patterns ignore.
func (w *Workspace) protectedPaths() []string {
	if w.tree.ignore == nil {
		return nil
	}
	w.list.RLock()
	defer w.list.RUnlock()
	return slices.DeleteFunc(slices.Clone(w.tracked.paths), func(p string) bool { return !w.ignoresPath(p) })
}

// ignoresPath reports whether the patterns in use ignore a path, if it is not a directory.
func (w *Workspace) ignoresPath(p string) bool {
	return w.tree.ignore != nil && w.tree.ignore.rules.Ignored(p, false)
}

// saveTracked looks at the tracked files, and keeps copies of those that have changed since the epoch before. The caller holds Tree.mu alone.
func (w *Workspace) saveTracked(paths []string, e checkpoint.Epoch) ([]trackedFile, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	list := make([]trackedFile, 0, len(paths))
	for _, p := range paths {
		f, err := w.saveTrackedFile(p, e)
		if err != nil {
			return nil, errs.New(errs.Internal, "save tracked file", p, "%w", err)
		}
		list = append(list, f)
	}
	return list, nil
}

func (w *Workspace) saveTrackedFile(path string, e checkpoint.Epoch) (trackedFile, error) {
	at, err := w.tree.findTracked(path)
	if err != nil || at == nil {
		return trackedFile{Path: path}, err
	}
	defer at.close()
	f := w.tree.describeTracked(path, &at.st)
	w.list.RLock()
	last, ok := w.tracked.latest[path]
	w.list.RUnlock()
	if ok && f.Ctime != 0 && f.Ctime == last.Ctime && f.ID == last.ID {
		return last, nil
	}
	switch f.kind() {
	case unix.S_IFLNK:
		target, err := readlinkAt(at.fd, at.name)
		f.Target = []byte(target)
		return f, err
	case unix.S_IFREG:
		return f, w.copyTracked(&f, at, e)
	}
	return f, nil
}

// describeTracked gives what st says.
func (t *Tree) describeTracked(path string, st *unix.Statx_t) trackedFile {
	a := t.attrRecord(st, checkpoint.Slot{})
	f := trackedFile{Path: path, Mode: a.Mode, UID: a.UID, GID: a.GID, Size: a.Size, Mtime: a.Mtime, Ctime: a.Ctime, ID: t.idOf(st)}
	if n := t.known(f.ID); n != nil && t.hasDirect(n) {
		f.Ctime = 0 // a page that a mapping has dirtied already can change without a change of ctime
	}
	return f
}

// copyTracked keeps a copy of a regular file.
func (w *Workspace) copyTracked(f *trackedFile, at *trackedPlace, e checkpoint.Epoch) error {
	src, err := at.open()
	if err != nil {
		return err
	}
	defer src.Close()
	if f.Xattrs, err = xattrsFd(int(src.Fd())); err != nil {
		return err
	}
	dst, err := w.tracked.create(e)
	if err != nil {
		return err
	}
	defer dst.Close()
	f.Copy = dst.Name()
	if err := cloneOrCopy(dst, src); err != nil {
		return err
	}
	if f.Sum, f.Size, err = strategy.SumFile(dst); err != nil || !w.cfg.Sync {
		return err
	}
	return errors.Join(dst.Sync(), w.tracked.dir.Sync())
}

// create makes a file for a copy, with a name that no other has.
func (f *trackedFiles) create(e checkpoint.Epoch) (*os.File, error) {
	for {
		f.nextNum++
		name := fmt.Sprintf("%x-%x", uint64(e), f.nextNum)
		fd, err := unix.Openat(int(f.dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if err != unix.EEXIST {
			return nil, err
		}
	}
}

// open opens a copy, and proves that it is what was saved.
func (f *trackedFiles) open(t *trackedFile) (*os.File, error) {
	fd, err := unix.Openat(int(f.dir.Fd()), t.Copy, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), t.Copy)
	sum, size, err := strategy.SumFile(file)
	if err == nil && (sum != t.Sum || size != t.Size) {
		err = strategy.ErrCorrupt
	}
	if err == nil {
		_, err = file.Seek(0, 0)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func cloneOrCopy(dst, src *os.File) error {
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		return nil
	}
	return strategy.Copy(dst, src)
}

// trackedAt gives the tracked files of an epoch.
func (w *Workspace) trackedAt(e checkpoint.Epoch) []trackedFile {
	w.list.RLock()
	defer w.list.RUnlock()
	return w.tracked.epochs[e]
}

// putTracked writes the tracked files of an epoch.
func putTracked(tx *checkpoint.Tx, e checkpoint.Epoch, list []trackedFile) error {
	if len(list) == 0 {
		return tx.DeleteMeta(metaTracked(e)) // of an epoch of this number that was never begun
	}
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return tx.PutMeta(metaTracked(e), b)
}

// noteTracked has the tracked files of an epoch in memory.
func (w *Workspace) noteTracked(e checkpoint.Epoch, list []trackedFile) {
	if len(list) == 0 {
		return
	}
	w.list.Lock()
	defer w.list.Unlock()
	w.tracked.epochs[e] = list
	w.tracked.keep(list)
}

// lookAgain looks at files that were tracked before, and that the beginning of the current epoch did not look at. The caller holds Tree.mu alone.
func (w *Workspace) lookAgain(before []trackedFile) error {
	have := w.trackedAt(w.tree.epoch)
	var missing []string
	for _, f := range before {
		if !slices.ContainsFunc(have, func(t trackedFile) bool { return t.Path == f.Path }) {
			missing = append(missing, f.Path)
		}
	}
	more, err := w.saveTracked(missing, w.tree.epoch)
	if err != nil || len(more) == 0 {
		return err
	}
	w.noteTracked(w.tree.epoch, append(slices.Clone(have), more...))
	return nil
}

// sweepTracked frees what no checkpoint and no open state needs. The caller shares w.admin, or holds it alone.
func (w *Workspace) sweepTracked() error {
	w.list.Lock()
	var ended []checkpoint.Epoch
	if len(w.tracked.epochs) == 0 {
		w.list.Unlock()
		return nil
	}
	needed := append(w.checkpointEpochs(), w.pinnedEpochs()...)
	for e := range w.tracked.epochs {
		if !slices.Contains(needed, e) {
			ended = append(ended, e)
			delete(w.tracked.epochs, e)
		}
	}
	w.list.Unlock()
	if len(ended) == 0 {
		return nil
	}
	err := w.store.Update(func(tx *checkpoint.Tx) error {
		for _, e := range ended {
			if err := tx.DeleteMeta(metaTracked(e)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.tree.mu.Lock() // so that no copy is being made that nothing names yet
	defer w.tree.mu.Unlock()
	w.list.RLock()
	used := w.tracked.used()
	w.list.RUnlock()
	return eachName(int(w.tracked.dir.Fd()), func(name string) error {
		if used[name] {
			return nil
		}
		return unix.Unlinkat(int(w.tracked.dir.Fd()), name, 0)
	})
}

// trackedPlace is where something is at a tracked path. Call close.
type trackedPlace struct {
	fd   int // of the directory
	name string
	st   unix.Statx_t
}

func (p *trackedPlace) close() { _ = unix.Close(p.fd) }

// open opens a regular file for reading, also where its owner has shut it for themselves.
func (p *trackedPlace) open() (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(p.fd, p.name, flags, 0)
	if err == unix.EACCES {
		fd, err = p.openLifted(flags)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), p.name), nil
}

// openLifted opens a file of ours that we may not read, by lifting its mode for that moment.
func (p *trackedPlace) openLifted(flags int) (int, error) {
	mode := uint32(p.st.Mode) & 0o7777
	if err := unix.Fchmodat(p.fd, p.name, mode|0o400, 0); err != nil {
		return -1, unix.EACCES
	}
	fd, err := unix.Openat(p.fd, p.name, flags, 0)
	if back := unix.Fchmodat(p.fd, p.name, mode, 0); err == nil && back != nil {
		_ = unix.Close(fd)
		return -1, back
	}
	return fd, err
}

// findTracked finds what is at a path, nil where that is nothing. It follows no symlink.
func (t *Tree) findTracked(path string) (*trackedPlace, error) {
	fd, missing, err := t.openParent(path)
	if err == unix.ENOTDIR {
		return nil, nil
	}
	if err != nil || len(missing) > 0 {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return nil, err
	}
	p := &trackedPlace{fd: fd, name: path[strings.LastIndexByte(path, '/')+1:]}
	if err := statAt(fd, p.name, &p.st); err != nil {
		p.close()
		if err == unix.ENOENT {
			err = nil
		}
		return nil, err
	}
	return p, nil
}

// openParent opens the directory of a path as far as there is one, and gives the names of those that are missing. ENOTDIR says that something else is in
// the way.
func (t *Tree) openParent(path string) (fd int, missing []string, err error) {
	fd, err = unix.Openat(t.rootFd, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	names := strings.Split(path, "/")
	for i, name := range names[:len(names)-1] {
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT {
			return fd, names[i : len(names)-1], nil
		}
		_ = unix.Close(fd)
		if err == unix.ELOOP {
			err = unix.ENOTDIR
		}
		if err != nil {
			return -1, nil, err
		}
		fd = next
	}
	return fd, nil, nil
}

var _ Contracts = (*Workspace)(nil)

// DeclareOutputs is Contracts.DeclareOutputs. What is at the paths now counts for the checkpoint that the live state comes from.
func (w *Workspace) DeclareOutputs(ctx context.Context, c OutputContract) (OutputContract, error) {
	leave, err := w.enter("declare outputs", false)
	if err != nil {
		return c, err
	}
	defer leave()
	if c.Checkpoint != "" {
		if _, err := w.target("declare outputs", c.Checkpoint); err != nil {
			return c, err
		}
	}
	for _, o := range c.Outputs {
		if err := w.refuseDir("declare outputs", o.Path); err != nil {
			return c, err
		}
	}
	c, err = w.book.Declare(c, w.protectPaths)
	return c, errs.Ensure("declare outputs", c.Tool, err)
}

// Track is Contracts.Track. What is at the paths now counts for the checkpoint that the live state comes from.
func (w *Workspace) Track(ctx context.Context, paths []string) ([]string, error) {
	leave, err := w.enter("track", false)
	if err != nil {
		return nil, err
	}
	defer leave()
	for _, p := range paths {
		if err := w.refuseDir("track", p); err != nil {
			return nil, err
		}
	}
	all, err := w.book.Track(paths, w.protectPaths)
	return all, errs.Ensure("track", "", err)
}

// refuseDir gives IGNORED_PATH for an ignored directory, which would not be protected by being tracked. What is wrong with a path as such is said by the book.
func (w *Workspace) refuseDir(op, name string) error {
	path, err := w.book.Path(op, name)
	if err != nil || !w.tree.ignore.ignoresAny(path, true) {
		return nil
	}
	w.tree.mu.RLock()
	defer w.tree.mu.RUnlock()
	at, err := w.tree.findTracked(path)
	if err != nil || at == nil {
		return nil
	}
	defer at.close()
	if !isDir(&at.st) {
		return nil
	}
	return errs.New(errs.IgnoredPath, op, path, "it is an ignored directory, and what is in it stays unprotected").WithHint("name the files in it, or mount with a pattern that makes an exception")
}

// Tracked is Contracts.Tracked.
func (w *Workspace) Tracked() []string { return w.book.Tracked() }

// Outputs is Contracts.Outputs.
func (w *Workspace) Outputs(ctx context.Context, id string) ([]OutputContract, error) {
	leave, err := w.stay("outputs")
	if err != nil {
		return nil, err
	}
	defer leave()
	if _, ok := w.find(id); id != "" && !ok {
		return nil, noCheckpoint(id)
	}
	return w.book.Outputs(id, func(path string) bool {
		w.tree.mu.RLock()
		defer w.tree.mu.RUnlock()
		at, err := w.tree.findTracked(path)
		if err != nil || at == nil {
			return true
		}
		at.close()
		return false
	}), nil
}

// protectPaths has paths protected from now on. The caller holds w.admin alone.
func (w *Workspace) protectPaths(paths []string) error {
	w.tree.flushMapped()
	w.tree.mu.Lock()
	defer w.tree.mu.Unlock()
	if c, ok := w.newest(); ok {
		if err := w.addTracked(c.Epoch, paths); err != nil {
			return err
		}
	}
	w.list.Lock()
	w.tracked.paths = paths
	w.list.Unlock()
	w.exempt()
	return nil
}

// exempt tells strict mode of the paths that it lets through.
func (w *Workspace) exempt() {
	if w.tree.ignore != nil {
		w.tree.ignore.writes.setExempt(w.protectedPaths())
	}
}

// addTracked adds paths that an epoch does not have to what it has, as they are now. The caller holds Tree.mu alone.
func (w *Workspace) addTracked(e checkpoint.Epoch, paths []string) error {
	list := slices.Clone(w.trackedAt(e))
	fresh := slices.DeleteFunc(slices.Clone(paths), func(p string) bool {
		return !w.ignoresPath(p) || slices.ContainsFunc(list, func(f trackedFile) bool { return f.Path == p })
	})
	more, err := w.saveTracked(fresh, e)
	if err != nil || len(more) == 0 {
		return err
	}
	list = append(list, more...)
	if err := w.store.Update(func(tx *checkpoint.Tx) error { return putTracked(tx, e, list) }); err != nil {
		return err
	}
	w.noteTracked(e, list)
	return nil
}

// endContracts forgets those of checkpoints that are not active any more.
func (w *Workspace) endContracts() {
	active := func(id string) bool {
		c, ok := w.find(id)
		return ok && c.Status == checkpoint.Active
	}
	err := w.book.End(active, func(paths []string) error {
		w.list.Lock()
		w.tracked.paths = paths
		w.list.Unlock()
		w.exempt()
		return nil
	})
	if err != nil {
		w.log.Error("the contracts of a checkpoint that has ended can't be forgotten", "err", err)
	}
}
