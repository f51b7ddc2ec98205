package fs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// A branch mount shows a branch at another path, for those who may make no bind mount: it is a mount of its own, which the same process serves. So the
// kernel has two views of one volume, with caches that know nothing of each other.
//
//   - What is changed in the branch mount is told to the mount of the workspace before the change is answered (told).
//   - In the branch mount the kernel believes nothing for longer than a request takes, and its reads and writes go to the daemon. Only mappings have
//     pages there. They are told of changes when these have been answered: to wait for it could be to wait for a request of the branch mount that waits
//     for one here.

// branchMounts are the branch mounts of a mount.
type branchMounts struct {
	mu    sync.Mutex                     // held while all is replaced
	all   atomic.Pointer[[]*branchMount] // nil is none
	ended bool                           // there will be no more; guarded by mu
}

type branchMount struct {
	*Server
	branch string
	device string        // major:minor
	ended  chan struct{} // closed when the volume is given back too
}

// BranchMount is a branch that is shown at a path of its own.
type BranchMount struct {
	Branch     string
	Mountpoint string
}

func (b *branchMounts) list() []*branchMount {
	if all := b.all.Load(); all != nil {
		return *all
	}
	return nil
}

// add is false where the mount of the workspace has ended.
func (b *branchMounts) add(m *branchMount) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	all := append(slices.Clone(b.list()), m)
	b.all.Store(&all)
	return true
}

// end gives those that there are, of which there will be no more.
func (b *branchMounts) end() []*branchMount {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	return b.list()
}

func (b *branchMounts) remove(m *branchMount) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(b.list()), func(have *branchMount) bool { return have == m })
	b.all.Store(&all)
}

// MountBranch shows a branch of the shelf at another path, until it is unmounted there or the mount of the workspace ends. If the branch is dropped,
// programs find ESTALE. Errors are those of Mount, and NOT_FOUND where there is no such branch.
func (m *Server) MountBranch(name, at string) (mountpoint string, err error) {
	if m.shelf == nil {
		return "", errs.New(errs.Unsupported, "mount", at, "this mount shows no branches")
	}
	if err := m.refuseBelow(at); err != nil { // before anything is looked up there: the daemon does not enter its own mount
		return "", err
	}
	if at, err = prepare(at); err != nil {
		return "", err
	}
	if err := m.refuseBelow(at); err != nil {
		return "", err
	}
	vol, giveBack, err := m.shelf.Branch(name)
	if err != nil {
		return "", err
	}
	b, err := m.serveBranch(name, vol, at)
	if err != nil {
		giveBack()
		return "", err
	}
	if !m.fs.mounts.add(b) {
		_ = unmount(at, true)
		err = errs.New(errs.Busy, "mount", at, "the mount of the workspace has ended")
	}
	go func() {
		b.serve()
		giveBack()
		m.fs.mounts.remove(b)
		close(b.ended)
	}()
	return at, err
}

// refuseBelow fails for a path that leads into the mount by its names.
func (m *Server) refuseBelow(at string) error {
	if rel, err := filepath.Rel(m.mountpoint, at); err == nil && filepath.IsLocal(rel) {
		return errs.New(errs.Path, "mount", at, "it is in the mount of the workspace")
	}
	return nil
}

func (m *Server) serveBranch(name string, vol overlay.Volume, at string) (*branchMount, error) {
	o := m.options
	o.InPlace, o.NoPassthrough, o.Shelf = false, true, nil
	to := &others{notifier: notifier{m.fs}}
	s := newBranchFilesystem(told{vol, to}, m.fs)
	to.self = s
	t, err := s.readTransport(metered{s, s.meter}, at, branchSource(name, m.mountpoint), o)
	if err != nil {
		return nil, err
	}
	s.opens.turnOff("it is a branch")
	device, err := deviceOf(at)
	if err != nil {
		_ = unmount(at, true)
		return nil, mountError(at, err)
	}
	return &branchMount{device: device, Server: &Server{mountpoint: at, fs: s, transport: t, done: make(chan struct{}), options: o}, branch: name, ended: make(chan struct{})}, nil
}

// deviceOf gives the device of what is mounted at a path.
func deviceOf(path string) (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	return topMount(string(mounts), path).device, err
}

// newBranchFilesystem is newFilesystem for a branch whose workspace another one has.
func newBranchFilesystem(vol overlay.Volume, of *filesystem) *filesystem {
	s := &filesystem{
		root: of.root, RawFileSystem: fuse.NewDefaultRawFileSystem(), log: of.log,
		main:  newVolume(vol, false),
		nodes: newNodeTable(), handles: newHandleTable(), sharedFiles: newSharedFiles(), listings: newListings(), meter: of.meter,
	}
	s.main.cache, s.main.uncached = timeouts{}, true
	s.opens = newOpenInodes(s)
	return s
}

// BranchMounts lists the branch mounts.
func (m *Server) BranchMounts() (list []BranchMount) {
	for _, b := range m.fs.mounts.list() {
		list = append(list, BranchMount{b.branch, b.mountpoint})
	}
	return list
}

// unmountBranches takes all branch mounts away, and gives them. If one is in use all stay, unless lazy.
func (m *Server) unmountBranches(lazy bool) (gone []*branchMount, err error) {
	for _, b := range m.fs.mounts.list() {
		mounted, err := b.unmount(lazy)
		if err != nil {
			m.remountBranches(gone)
			return nil, err
		}
		if mounted {
			gone = append(gone, b)
		}
	}
	return gone, nil
}

// endPatience is how long a branch mount that was taken away may take to end.
const endPatience = 5 * time.Second

// unmount reports whether it was mounted still. One that somebody has taken away lazily may be in use.
func (b *branchMount) unmount(lazy bool) (mounted bool, err error) {
	if mounted = b.isMounted(); mounted {
		err = unmount(b.mountpoint, lazy)
	}
	if lazy || err != nil {
		return mounted, err
	}
	select {
	case <-b.ended:
		return mounted, nil
	case <-time.After(endPatience):
		return mounted, errs.New(errs.Busy, "unmount", b.mountpoint, "the mount of the branch %s that was there is detached, but a program still uses it", b.branch).
			WithHint("end the program, or unmount with --lazy")
	}
}

// isMounted reports whether its mountpoint shows it.
func (b *branchMount) isMounted() bool {
	device, err := deviceOf(b.mountpoint)
	return err != nil || device == b.device
}

// endBranches takes away what is left when the mount of the workspace is gone, and waits until it is.
func (m *Server) endBranches() {
	for _, b := range m.fs.mounts.end() {
		if b.isMounted() {
			_ = unmount(b.mountpoint, true)
		}
		<-b.ended
	}
}

// remountBranches puts branch mounts back because the mount stays.
func (m *Server) remountBranches(gone []*branchMount) {
	for _, b := range gone {
		if _, err := m.MountBranch(b.branch, b.mountpoint); err != nil {
			m.fs.log.Warn("a branch could not be mounted again", "branch", b.branch, "at", b.mountpoint, "err", err)
		}
	}
}

// changed tells the mappings of branch mounts that the content of a file has changed, by a request of self; see branchMounts.
func (s *filesystem) changed(n overlay.Inode, self *filesystem) {
	for _, b := range s.mounts.list() {
		if b.fs != self && b.fs.nodes.has(n.Num()) {
			go b.fs.invalMapped(n)
		}
	}
}

// invalMapped is not for a request: who opens the file just now may wait for the mount of the workspace.
func (s *filesystem) invalMapped(n overlay.Inode) {
	if s.opens.isCached(n) {
		notifier{s}.InvalInode(n)
	}
}

// others is the Notifier of what a branch mount changes: the mount of the workspace, and the other branch mounts.
type others struct {
	notifier
	self *filesystem
}

func (o *others) InvalInode(n overlay.Inode) {
	o.notifier.InvalInode(n)
	if !n.IsDir() {
		o.s.changed(n, o.self)
	}
}

// everywhere is the Notifier of a mount and its branch mounts. In these nothing is kept but pages of files that are mapped.
type everywhere struct{ notifier }

func (e everywhere) InvalInode(n overlay.Inode) {
	e.notifier.InvalInode(n)
	for _, b := range e.s.mounts.list() {
		if !n.IsDir() {
			notifier{b.fs}.InvalInode(n)
		}
	}
}

func (e everywhere) FlushInode(n overlay.Inode) {
	e.notifier.FlushInode(n)
	for _, b := range e.s.mounts.list() {
		notifier{b.fs}.FlushInode(n)
	}
}

// branchSource is what the kernel's list of mounts has as the source of a branch mount: it tells the branch, and where the workspace is mounted.
func branchSource(branch, mountpoint string) string { return fsName + ":" + branch + ":" + mountpoint }

// ofBranch gives what branchSource was made of.
func (e mountEntry) ofBranch() (branch, mountpoint string, ok bool) {
	rest, ok := strings.CutPrefix(e.source, fsName+":")
	if !ok || e.kind != mountType || e.root != "/" {
		return "", "", false
	}
	branch, mountpoint, ok = strings.Cut(rest, ":/")
	return branch, "/" + mountpoint, ok
}

// cleanDeadBranches takes away the branch mounts that a daemon which died has left of the workspace at mountpoint.
func cleanDeadBranches(mountpoint string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mountError(mountpoint, err)
	}
	for _, e := range parseMounts(string(mounts)) {
		if _, of, ok := e.ofBranch(); !ok || of != mountpoint {
			continue
		}
		if _, e := CleanDeadMount(e.point); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}
