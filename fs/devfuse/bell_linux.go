package devfuse

import "golang.org/x/sys/unix"

// bell is an eventfd, which wakes a thread that waits in the kernel.
type bell int

// newBell makes one; flags are those of eventfd(2) besides EFD_CLOEXEC.
func newBell(flags int) (bell, error) {
	fd, err := unix.Eventfd(0, flags|unix.EFD_CLOEXEC)
	return bell(fd), err
}

func (b bell) ring() { _, _ = unix.Write(int(b), []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// hear waits until it has rung since it was last heard, or not at all with EFD_NONBLOCK.
func (b bell) hear() {
	var rung [8]byte
	_, _ = unix.Read(int(b), rung[:])
}

func (b bell) close() error { return unix.Close(int(b)) }
