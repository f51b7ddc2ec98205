package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"

	"github.com/Microsoft/go-winio"
	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/windows"
)

// pipePrefix begins the names of all named pipes of this machine.
const pipePrefix = `\\.\pipe\hyperfs-`

// Sockets lists where the named pipe of a workspace may be: there is one place. The path must be absolute, symlinks resolved.
// Named pipes are not files: who may connect is in their security descriptor, which needs no directory that others can't enter.
func Sockets(workspace string) []string {
	return []string{pipePrefix + strings.TrimSuffix(SocketName(strings.ToUpper(workspace)), ".sock")}
}

// Listen makes the named pipe of a workspace. The caller must hold the store's lock, so that no other daemon of the workspace
// can be starting. A pipe that is there already is BUSY: it ends with its process. Nobody but the process's own user,
// administrators and the system can connect, and nobody from another machine. There are no mountpoints here.
func Listen(workspace, _ string, log *slog.Logger) (net.Listener, error) {
	user, err := currentUser()
	if err != nil {
		return nil, errs.Wrap(Internal, "listen", workspace, err)
	}
	path := Sockets(workspace)[0]
	if c, err := dialSocket(context.Background(), path); err == nil {
		c.Close()
		return nil, errs.New(Busy, "listen", path, "another daemon answers there")
	}
	l, err := winio.ListenPipe(path, &winio.PipeConfig{SecurityDescriptor: ownersOnly(user)})
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, windows.ERROR_ACCESS_DENIED), errors.Is(err, windows.ERROR_PIPE_BUSY), errors.Is(err, windows.ERROR_FILE_EXISTS):
		return nil, errs.New(Busy, "listen", path, "another process has it: %w", err)
	}
	return nil, errs.Wrap(Internal, "listen", path, err)
}

// ownersOnly is a security descriptor that lets in a user, the administrators and the system, and takes over nothing.
func ownersOnly(user *windows.SID) string {
	return "O:" + user.String() + "D:P(A;;GA;;;SY)(A;;GA;;;BA)(A;;GA;;;" + user.String() + ")"
}

func currentUser() (*windows.SID, error) {
	u, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	return u.User.Sid, nil
}

// dialSocket connects to a pipe. One of somebody who could as well be anybody else is refused: any process may make a pipe
// of a name that is free. The server learns nothing about who connects that it could use in their name.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := winio.DialPipeContext(ctx, path)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: err}
	}
	if err := checkOwner(c); err != nil {
		c.Close()
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: err}
	}
	return c, nil
}

// checkOwner reports whether a pipe belongs to this user, to the administrators or to the system.
func checkOwner(c net.Conn) error {
	f, ok := c.(interface{ Fd() uintptr })
	if !ok {
		return errors.New("the pipe has no handle")
	}
	sd, err := windows.GetSecurityInfo(windows.Handle(f.Fd()), windows.SE_KERNEL_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return err
	}
	owner, _, err := sd.Owner()
	if err != nil {
		return err
	}
	user, err := currentUser()
	if err != nil {
		return err
	}
	if owner != nil && (owner.Equals(user) || owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) || owner.IsWellKnown(windows.WinLocalSystemSid)) {
		return nil
	}
	return errs.New(Path, "use", "the pipe", "it belongs to %v", owner)
}

// FindSocket gives the named pipe of a workspace that a daemon answers on, or NOT_FOUND. The path must be absolute,
// symlinks resolved.
func FindSocket(ctx context.Context, workspace string) (string, error) {
	path := Sockets(workspace)[0]
	c, err := dialSocket(ctx, path)
	if err != nil {
		return "", noDaemon(workspace)
	}
	c.Close()
	return path, nil
}
