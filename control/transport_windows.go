package control

import (
	"net"
	"unsafe"

	"golang.org/x/sys/windows"
)

var peekNamedPipe = windows.NewLazySystemDLL("kernel32.dll").NewProc("PeekNamedPipe")

// stillOpen reports whether nothing has arrived on an idle connection: neither its end nor what nobody asked for. So a
// request, which may not be sent twice, never goes to a daemon that is gone.
func stillOpen(c net.Conn) bool {
	f, ok := c.(interface{ Fd() uintptr })
	if !ok {
		return true // a pipe in memory, whose other end is this process
	}
	var waiting uint32
	done, _, _ := peekNamedPipe.Call(f.Fd(), 0, 0, 0, uintptr(unsafe.Pointer(&waiting)), 0)
	return done != 0 && waiting == 0
}
