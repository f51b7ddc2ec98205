package control

import "golang.org/x/sys/unix"

// credentialsOf gives the user at the other end of a socket (SO_PEERCRED, unix(7)).
func credentialsOf(fd int) (int, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}
