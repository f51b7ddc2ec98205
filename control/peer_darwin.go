package control

import "golang.org/x/sys/unix"

// credentialsOf gives the user at the other end of a socket (LOCAL_PEERCRED, unix(4)).
func credentialsOf(fd int) (int, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}
