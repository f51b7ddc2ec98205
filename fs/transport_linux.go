package fs

import (
	"fmt"
	"log/slog"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/fs/uring"
	"golang.org/x/sys/unix"
)

// newServer mounts, and takes requests by io_uring, or from /dev/fuse and says why.
func newServer(answers fuse.RawFileSystem, mountpoint, source string, o *fuse.MountOptions, noURing bool, log *slog.Logger) (srv *fuse.Server, ring *uring.Pool, why string, err error) {
	why = "it is switched off"
	if !noURing {
		with := *o
		if srv, ring, err = ringServer(answers, mountpoint, source, &with, log); err == nil {
			return srv, ring, "", nil
		}
		why = err.Error()
	}
	srv, err = readServer(answers, mountpoint, source, o)
	return srv, nil, why, err
}

// readServer mounts, and takes requests from /dev/fuse.
func readServer(answers fuse.RawFileSystem, mountpoint, source string, o *fuse.MountOptions) (*fuse.Server, error) {
	srv, _, err := mountServer(answers, mountpoint, source, o)
	return srv, err
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

const opcodeInit = 26 // FUSE_INIT

func bytesOf(in *fuse.InitIn) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(in)), unsafe.Sizeof(*in))
}
