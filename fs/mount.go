package fs

import (
	"cmp"
	"io"
	"log/slog"
	"path/filepath"
	"runtime/debug"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// Options say how to mount. The zero value is a mount elsewhere, for the user of the daemon alone.
type Options struct {
	AllowOther     bool         // other users may enter the mount; an ordinary user needs user_allow_other in /etc/fuse.conf
	Debug          bool         // every request and reply is logged
	InPlace        bool         // it is mounted over the workspace, so that nobody else changes what is underneath
	Passthrough    bool         // files are served past the daemon where that can be, at the price of a request for each open
	NoPassthrough  bool         // all reads and writes go through the daemon, also where the kernel has to ask for opens
	Logger         *slog.Logger // nil means none
	Shelf          Shelf        // what the mount shows besides the tree, in .hyperfs; nil means nothing
	NoXattrs       bool         // programs see no extended attributes and no ACLs, and are not asked for any; not with AllowOther, as the kernel checks no ACLs then
	OpenRequests   bool         // the kernel asks for each open, also where nothing depends on it
	NoNearReader   bool         // the one that reads /dev/fuse stays where it is, and does not follow the program that asks
	NoSingleReader bool         // several threads read /dev/fuse at all times, by the loop of go-fuse
	NoURing        bool         // requests are read from /dev/fuse, also where the kernel has FUSE over io_uring switched on
	Echo           bool         // programs that watch files are told of what a rollback, an undo or a merge changes, by a process of ours
}

const (
	// maxWrite is the size of the largest request, in bytes. The kernel's default limit is 256 pages.
	maxWrite = 1 << 20
	// maxBackground is how many requests of readahead, writeback and direct I/O are under way at once.
	maxBackground = 64
)

// Server is a mount that is being served.
type Server struct {
	mountpoint string
	fs         *filesystem
	transport  transport
	done       chan struct{} // closed when the kernel has let go and everything is given back
	features   Features
	options    Options
	shelf      Shelf // nil where there is none
}

// Mount shows tree at mountpoint, with the shelf if there is one, and becomes the tree's Notifier. It returns when the mount answers. Errors are one line:
// USAGE where options exclude each other, PATH where the mountpoint is none, BUSY where it has a hyperfs mount already, UNSUPPORTED where the machine or the user has no FUSE.
// A dead mount that an earlier daemon has left there is taken away first.
func Mount(tree *overlay.Tree, mountpoint string, o Options) (*Server, error) {
	log := o.Logger
	if log == nil {
		log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.NoXattrs && o.AllowOther {
		return nil, errs.New(errs.Usage, "mount", mountpoint, "without extended attributes (--no-xattrs) others can't be let in (--allow-other): the kernel could not check what ACLs forbid them")
	}
	mountpoint, err := prepare(mountpoint)
	if err != nil {
		return nil, err
	}
	if err := cleanDeadBranches(mountpoint); err != nil {
		log.Warn("a mount of a branch, whose daemon has died, stays", "err", err)
	}
	s := newFilesystem(tree, o, log)
	var answers fuse.RawFileSystem = s
	if o.Echo {
		s.echo = newEcho(s, mountpoint, log)
		answers = echoed{s, s.echo}
	}
	t, err := s.newTransport(metered{answers, s.meter}, mountpoint, fsName, o)
	if err != nil {
		return nil, err
	}
	m := &Server{mountpoint: mountpoint, fs: s, transport: t, done: make(chan struct{}), options: o, shelf: o.Shelf}
	m.features = newFeatures(t.server.KernelSettings(), capabilities(o.InPlace, s.noOpen))
	m.features.InPlace = o.InPlace
	m.features.URing, m.features.URingReason, m.features.SingleReader = t.ring != nil, t.noRing, t.dev != nil
	m.features.NoOpen, m.features.NoOpenReason = s.noOpen, t.opens
	switch {
	case o.NoPassthrough:
		s.opens.turnOff("it is switched off")
	case s.noOpen:
		s.opens.turnOff(cmp.Or(s.passthroughObstacle(), "it was not asked for (--passthrough)"))
	default:
		s.opens.tryPassthrough()
	}
	s.mountpoint = mountpoint
	if s.device, err = deviceNumber(mountpoint); err != nil {
		_ = unmount(mountpoint, true)
		return nil, mountError(mountpoint, err)
	}
	if s.root {
		if err := raiseReadahead(mountpoint); err != nil {
			log.Debug("readahead stays as it is", "error", err)
		}
	}
	tree.SetNotifier(m.Notifier())
	go m.serve()
	return m, nil
}

// prepare makes the mountpoint absolute and checks what can be checked.
func prepare(mountpoint string) (string, error) {
	abs, err := filepath.Abs(mountpoint)
	if err != nil {
		return "", mountError(mountpoint, err)
	}
	if _, err := CleanDeadMount(abs); err != nil {
		return "", err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return "", mountpointError(mountpoint, err)
	}
	return abs, checkMountpoint(abs)
}

func (s *filesystem) fuseOptions(o Options) *fuse.MountOptions {
	log := s.log
	level := slog.LevelWarn
	if o.Debug {
		level = slog.LevelDebug
	}
	mo := &fuse.MountOptions{
		AllowOther:               o.AllowOther,
		MaxWrite:                 maxWrite,
		MaxBackground:            maxBackground,
		Debug:                    o.Debug,
		Logger:                   slog.NewLogLogger(log.Handler(), level),
		EnableAcl:                true,
		DisableSplice:            true, // no faster, tried; and small reads would go through a pipe for nothing
		EnableSymlinkCaching:     true,
		ExplicitDataCacheControl: o.InPlace,
		ExtraCapabilities:        maskOf(capabilities(o.InPlace, s.noOpen)),
		PanicHandler: func(v any) fuse.Status {
			log.Error("a request panicked", "panic", v, "stack", string(debug.Stack()))
			return fuse.EIO
		},
	}
	if o.NoPassthrough || s.noOpen {
		mo.DisabledCapabilities = fuse.CAP_PASSTHROUGH
	}
	if !s.noOpen {
		mo.DisabledCapabilities |= fuse.CAP_NO_OPEN_SUPPORT
	}
	return mo
}

func (m *Server) serve() {
	m.transport.serve()
	m.endBranches()
	close(m.done)
}

// Mountpoint is the directory that the tree is shown at, absolute and without symlinks.
func (m *Server) Mountpoint() string { return m.mountpoint }

// Notifier tells the kernel what to forget of any volume that is mounted. A volume of the shelf that changes by itself, as by a rollback, must
// tell it; of the tree it is the Notifier already.
func (m *Server) Notifier() overlay.Notifier {
	all := everywhere{notifier{m.fs}}
	if m.fs.echo != nil {
		return teller{all}
	}
	return all
}

// Wait returns when the mount is gone: unmounted by anybody, and no file in it open any more. Then the tree can be closed.
func (m *Server) Wait() { <-m.done }

// Unmount takes the mount away, and all binds and branch mounts of it. While something is in use it fails with BUSY; lazy takes it out of sight at once instead,
// and it goes when the last user does. It waits for the end of the mount unless it is lazy. It may be called again.
func (m *Server) Unmount(lazy bool) error {
	select {
	case <-m.done:
		return nil
	default:
	}
	if pid := m.usedElsewhere(); pid != 0 && !lazy {
		return errs.New(errs.Busy, "unmount", m.mountpoint, "process %d has a branch in a mount namespace of its own, as hyperfs exec --branch and containers do", pid).
			WithHint("end it, or unmount with --lazy")
	}
	if m.fs.echo != nil {
		m.fs.echo.stop()
	}
	branches, err := m.unmountBranches(lazy)
	if err != nil {
		return err
	}
	binds, err := m.unbindAll(lazy)
	if err != nil {
		m.remountBranches(branches)
		return err
	}
	if err := unmount(m.mountpoint, lazy); err != nil {
		m.rebind(binds)
		m.remountBranches(branches)
		return err
	}
	if !lazy {
		m.Wait()
	}
	return nil
}

// Features tells what the mount found in the kernel.
func (m *Server) Features() Features {
	f := m.features
	f.Passthrough, f.PassthroughReason = m.fs.opens.passthrough(), m.fs.opens.why()
	f.EchoReason = "it is switched off"
	if m.fs.echo != nil {
		f.EchoReason = m.fs.echo.why()
	}
	f.Echo = f.EchoReason == ""
	return f
}

// Counts tells how many requests and notifications of each kind there were, of it and its branch mounts; those of which there was none are left out.
func (m *Server) Counts() map[string]uint64 { return m.fs.meter.counts() }

// Nodes is how many inodes the kernel holds.
func (m *Server) Nodes() int { return m.fs.nodes.len() }
