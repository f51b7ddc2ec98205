package fs

import (
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// timeouts are how long the kernel may believe what it was told.
type timeouts struct {
	entry, negative, attr time.Duration
}

var (
	// forGood is for a mount in place: nothing changes that the kernel is not told of. The kernel takes no timeout for
	// infinity; a year is as good, and cannot overflow.
	forGood = timeouts{365 * 24 * time.Hour, 365 * 24 * time.Hour, 365 * 24 * time.Hour}
	// forNow is for a mount elsewhere.
	forNow = timeouts{entry: time.Second, attr: time.Second}
)

// filesystem answers the kernel's requests. It does not know how they arrive: all that it needs of a transport is kernel.
type filesystem struct {
	fuse.RawFileSystem // what is not implemented here: ENOSYS

	main    *volume // what the root of the mount is
	shelf   *shelf  // nil where there is none
	log     *slog.Logger
	inPlace bool
	root    bool // the daemon is root, so it sees more than the callers may

	nodes       *nodeTable
	handles     *handleTable
	sharedFiles *sharedFiles
	listings    *listings
	opens       *openInodes
	meter       *meter
	stale       staleOpens
	echo        *echo         // nil where programs that watch files are told nothing
	newNum      func() uint64 // gives the number of a new node

	// invalidated grows with every notification. A reply that was worked out while it grew may say what holds no
	// more, and the notification come too early for the kernel to apply it: such a reply must not be cached.
	invalidated atomic.Uint64
	kernel      kernel
	noXattrs    bool // see GetXAttr
	noOpenDir   bool // the kernel need not open directories
	noOpen      bool // nor files: see sharedFiles
	mountpoint  string
	device      uint64                    // of the mount
	opensUnseen func()                    // tells the tree
	settle      func(nudge func()) uint64 // has all requests answered that there are; nil where the kernel asks for opens
	writebacks  writebacks
	cuts        cuts
	mapsDirect  bool // the kernel maps files whose reads and writes come to the daemon
	mounts      branchMounts
}

// kernel is how the filesystem talks back.
type kernel interface {
	InodeNotify(node uint64, off, length int64) fuse.Status
	EntryNotify(parent uint64, name string) fuse.Status
	DeleteNotify(parent uint64, child uint64, name string) fuse.Status
	backingFiles
}

func newFilesystem(tree *overlay.Tree, o Options, log *slog.Logger) *filesystem {
	s := &filesystem{
		root:          unix.Geteuid() == 0,
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		main:          newVolume(tree.Volume(), o.InPlace),
		opensUnseen:   tree.OpensUnseen,
		log:           log, inPlace: o.InPlace, noXattrs: o.NoXattrs, newNum: tree.NewNum,
		nodes: newNodeTable(), handles: newHandleTable(), sharedFiles: newSharedFiles(), listings: newListings(), meter: &meter{},
	}
	s.main.main = true
	if o.Shelf != nil {
		s.shelf = newShelf(o.Shelf, tree)
	}
	s.nodes.gone = s.sharedFiles.drop
	s.opens = newOpenInodes(s)
	s.opens.byBlocks = tree.KeptByBlocks
	return s
}

func (s *filesystem) String() string { return "hyperfs" }

// Init is called when the kernel has introduced itself.
func (s *filesystem) Init(srv *fuse.Server) {
	s.connect(srv, srv.KernelSettings().Flags64())
}

// connect gives the filesystem the way back to the kernel, and what that can do.
func (s *filesystem) connect(k kernel, capabilities uint64) {
	s.kernel = k
	s.mapsDirect = capabilities&fuse.CAP_DIRECT_IO_ALLOW_MMAP != 0
	s.noOpen = s.noOpen && capabilities&fuse.CAP_NO_OPEN_SUPPORT != 0
	s.noOpenDir = s.inPlace && capabilities&fuse.CAP_NO_OPENDIR_SUPPORT != 0
}

// OnUnmount gives everything back that the kernel had: after the connection has ended it forgets and releases nothing
// any more.
func (s *filesystem) OnUnmount() {
	if s.echo != nil {
		s.echo.close()
	}
	for _, f := range s.handles.drain() {
		s.opens.close(f)
	}
	s.opens.drain()
	s.sharedFiles.drain()
	s.listings.drain()
	s.nodes.drain()
}

// node gives the node of an ID, and holds its volume. The kernel only uses IDs that it was given and has not forgotten. Those of a volume
// that was given up are stale.
func (s *filesystem) node(id uint64) (node, fuse.Status) {
	if id == fuse.FUSE_ROOT_ID {
		return node{s.main, s.main.root}, fuse.OK
	}
	n, ok := s.nodes.use(id)
	if ok && !n.vol.gone() {
		return n, fuse.OK
	}
	if ok {
		n.vol.let()
	}
	return node{}, fuse.Status(syscall.ESTALE)
}

// file gives the open file of a handle.
func (s *filesystem) file(fh uint64) (*openFile, fuse.Status) {
	f := s.handles.get(fh)
	switch {
	case f == nil:
		return nil, fuse.EBADF
	case f.vol.gone():
		return nil, fuse.Status(syscall.ESTALE)
	}
	return f, fuse.OK
}

func callerOf(h *fuse.InHeader, umask uint32) *overlay.Caller {
	return &overlay.Caller{UID: h.Uid, GID: h.Gid, PID: h.Pid, Umask: umask}
}
