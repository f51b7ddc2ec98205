package fs

import (
	"cmp"
	"fmt"
	"log/slog"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/fs/devfuse"
	"github.com/hyperfs/hyperfs/fs/uring"
	"golang.org/x/sys/unix"
)

// transport is where the requests of a mount come from.
type transport struct {
	server *fuse.Server
	ring   *uring.Pool   // by io_uring, and only a few by the server
	dev    *devfuse.Pool // from /dev/fuse; by the server where both are nil
	noRing string        // why there is no ring
	opens  string        // why the kernel asks for opens, if it does
}

// newTransport mounts, and takes requests by io_uring, or from /dev/fuse. It settles whether the kernel asks for opens.
func (s *filesystem) newTransport(answers fuse.RawFileSystem, mountpoint, source string, o Options) (transport, error) {
	why, opens := "it is switched off", s.opensReason(o)
	switch s.noOpen = opens == ""; {
	case s.noOpen:
		s.opensUnseen()
		why = cmp.Or(uring.Enabled(), noRingUnseen)
	case !o.NoURing:
		srv, ring, err := ringServer(answers, mountpoint, source, s.fuseOptions(o), s.log)
		if err == nil {
			return transport{server: srv, ring: ring, opens: opens}, nil
		}
		why = err.Error()
	}
	t, err := s.readTransport(answers, mountpoint, source, o)
	if s.noOpen {
		s.settle = t.dev.Settle
	}
	t.noRing, t.opens = why, opens
	return t, err
}

// noRingUnseen is why there is no ring where the kernel opens files by itself, which saves more than a ring does.
const noRingUnseen = "by io_uring it can't be known when dirty pages have been written, so only where the kernel asks for opens (--open-requests, --passthrough)"

// readTransport mounts, and takes requests from /dev/fuse.
func (s *filesystem) readTransport(answers fuse.RawFileSystem, mountpoint, source string, o Options) (t transport, err error) {
	mo := s.fuseOptions(o)
	srv, fd, err := mountServer(answers, mountpoint, source, mo)
	if err != nil || o.NoSingleReader {
		return transport{server: srv}, err
	}
	protocol := fuse.NewProtocolServer(answers, mo)
	if err = negotiate(protocol, srv.KernelSettings()); err == nil {
		var clone devfuse.Clone
		if !o.NoNearReader {
			clone = func() (int, error) { return cloneDevice(fd) }
		}
		handle := protocol.HandleRequest
		if !o.Debug { // which go-fuse logs
			handle = (&dispatcher{answers, protocol.HandleRequest, mo.PanicHandler}).handle
		}
		t.dev, err = devfuse.Start(fd, maxWrite, handle, clone, s.log)
	}
	if err != nil {
		_ = unmount(mountpoint, true)
		return transport{}, mountError(mountpoint, err)
	}
	t.server = srv
	return t, nil
}

// serve returns when the mount has ended and all requests have been answered.
func (t *transport) serve() {
	if t.dev != nil {
		t.dev.Wait() // the descriptor is the server's, which closes it
	}
	t.server.Serve()
	if t.ring != nil {
		t.ring.Wait()
	}
}

// cloneDevice opens /dev/fuse once more for the connection of a descriptor, without blocking.
func cloneDevice(fd int) (int, error) {
	clone, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	const fuseDevIocClone = 0x8004e500 // FUSE_DEV_IOC_CLONE of linux/fuse.h, _IOR(229, 0, uint32_t)
	if err := unix.IoctlSetPointerInt(clone, fuseDevIocClone, fd); err != nil {
		_ = unix.Close(clone)
		return -1, err
	}
	return clone, nil
}

func mountServer(answers fuse.RawFileSystem, mountpoint, source string, o *fuse.MountOptions) (*fuse.Server, int, error) {
	fd, err := mount(mountpoint, source, o.AllowOther)
	if err != nil {
		return nil, -1, err
	}
	srv, err := fuse.NewServer(answers, fmt.Sprintf("/dev/fd/%d", fd), o)
	if err != nil {
		_ = unmount(mountpoint, true)
		return nil, -1, mountError(mountpoint, err)
	}
	return srv, fd, nil
}

// ringServer mounts, and has a ring take the requests. The server still reads /dev/fuse for what comes there in any case.
func ringServer(answers fuse.RawFileSystem, mountpoint, source string, o *fuse.MountOptions, log *slog.Logger) (*fuse.Server, *uring.Pool, error) {
	ring, err := uring.Prepare(maxWrite, log)
	if err != nil {
		return nil, nil, err
	}
	o.ExtraCapabilities |= uring.CapOverIOUring
	srv, fd, err := mountServer(answers, mountpoint, source, o)
	if err != nil {
		ring.Close()
		return nil, nil, err
	}
	protocol := fuse.NewProtocolServer(answers, o)
	if err = negotiate(protocol, srv.KernelSettings()); err != nil {
		ring.Close()
	} else {
		err = ring.Begin(fd, protocol.HandleRequest, func() {
			var st unix.Statfs_t
			_ = unix.Statfs(mountpoint, &st) // which the kernel never answers by itself
		})
	}
	if err != nil {
		_ = unmount(mountpoint, true) // the kernel gives no request to anybody any more
		return nil, nil, err
	}
	return srv, ring, nil
}

// negotiate gives the protocol's server the INIT that the other one has answered: the same options make the same answer.
func negotiate(p *fuse.ProtocolServer, in *fuse.InitIn) error {
	init := *in
	init.InHeader = fuse.InHeader{Length: uint32(unsafe.Sizeof(init)), Opcode: opcodeInit, Unique: 1}
	n, status := p.HandleRequest([][]byte{bytesOf(&init)}, [][]byte{make([]byte, maxWrite)})
	if !status.Ok() || n == 0 {
		return fmt.Errorf("INIT: %v", status)
	}
	return nil
}

func bytesOf(in *fuse.InitIn) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(in)), unsafe.Sizeof(*in))
}
