package control

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerUID gives the user that a connection came from (SO_PEERCRED, unix(7)).
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid := -1
	var credErr error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr == nil {
			uid = int(cred.Uid)
		}
	})
	if err == nil {
		err = credErr
	}
	return uid, err
}
