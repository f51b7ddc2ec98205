//go:build unix

package control

import "net"

// peerUID gives the user that a connection came from.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid := -1
	var credErr error
	err = raw.Control(func(fd uintptr) { uid, credErr = credentialsOf(int(fd)) })
	if err == nil {
		err = credErr
	}
	return uid, err
}
