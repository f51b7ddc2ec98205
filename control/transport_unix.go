//go:build unix

package control

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// stillOpen reports whether nothing has arrived on an idle connection: neither its end nor what nobody asked for. So a
// request, which may not be sent twice, never goes to a daemon that is gone.
func stillOpen(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return true // a pipe in memory, whose other end is this process
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, e := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		open = e == unix.EAGAIN
	})
	return err == nil && open
}
