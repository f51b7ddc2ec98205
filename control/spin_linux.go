package control

import (
	"net"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spinTime is how long a call looks for its reply before it goes to sleep. Waking up takes longer than most calls.
const spinTime = 150 * time.Microsecond

// spin waits for something to read, but not long. Whoever has one processor alone would keep the daemon from it.
func spin(c net.Conn) {
	sc, ok := c.(syscall.Conn)
	if !ok || runtime.GOMAXPROCS(0) == 1 {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	end := time.Now().Add(spinTime)
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		for time.Now().Before(end) {
			if _, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); err != unix.EAGAIN {
				return
			}
		}
	})
}
