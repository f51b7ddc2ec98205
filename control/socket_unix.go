//go:build unix

package control

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// maxSocketPath is what sun_path holds, less its final NUL.
const maxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1

// Sockets lists where the socket of a workspace may be, the preferred place first. The server takes the first that it
// can, the client the first that answers. The path must be absolute, symlinks resolved. The places are
//
//   - $XDG_RUNTIME_DIR/hyperfs,
//   - /run/user/UID/hyperfs, which is the same for a program that was started without that variable,
//   - /run/hyperfs for root,
//   - /tmp/hyperfs-UID,
//
// each with mode 0700. None of them can be in the workspace, where the mount would hide it.
func Sockets(workspace string) []string {
	return socketsOf(workspace, os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
}

func socketsOf(workspace string, uid int, runtimeDir string) []string {
	var list []string
	for _, dir := range socketDirs(uid, runtimeDir) {
		path := filepath.Join(dir, SocketName(workspace))
		if len(path) <= maxSocketPath && !below(workspace, path) && !contains(list, path) {
			list = append(list, path)
		}
	}
	return list
}

func socketDirs(uid int, runtimeDir string) []string {
	id := strconv.Itoa(uid)
	var dirs []string
	if filepath.IsAbs(runtimeDir) { // the XDG Base Directory Specification has relative ones ignored
		dirs = append(dirs, filepath.Join(runtimeDir, "hyperfs"))
	}
	dirs = append(dirs, filepath.Join("/run/user", id, "hyperfs"))
	if uid == 0 {
		dirs = append(dirs, "/run/hyperfs")
	}
	return append(dirs, filepath.Join("/tmp", "hyperfs-"+id))
}

// below reports whether path is dir or below it. Both are absolute.
func below(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// Listen opens the socket of a workspace in the first place of Sockets that can be used. The caller must hold the store's
// lock, so that no other daemon of the workspace can be starting. A socket that a dead daemon left is replaced; one that
// answers is BUSY. Connections of anybody but the process's own user and root are closed unanswered. Closing the listener
// removes the socket.
//
// A mountpoint that isn't the workspace itself also leads to the socket, by a symlink; "" means there is none.
func Listen(workspace, mountpoint string, log *slog.Logger) (net.Listener, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var why []string
	for _, path := range Sockets(workspace) {
		l, err := listenAt(path)
		if err == nil {
			o := &ownersOnly{UnixListener: l, log: log}
			return o, o.alias(path, workspace, mountpoint)
		}
		if CodeOf(err) == Busy {
			return nil, err
		}
		why = append(why, err.Error())
	}
	if len(why) == 0 {
		return nil, errs.New(Path, "listen", workspace, "every place for the socket is in the workspace").
			WithHint("set XDG_RUNTIME_DIR to a directory outside of it")
	}
	return nil, errs.New(Path, "listen", workspace, "%s", strings.Join(why, "; ")).
		WithHint("set XDG_RUNTIME_DIR to a directory that only this user can enter")
}

func listenAt(path string) (*net.UnixListener, error) {
	if err := privateDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if c, err := net.DialTimeout("unix", path, dialTimeout); err == nil {
		c.Close()
		return nil, errs.New(Busy, "listen", path, "another daemon answers there")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil { // until now the directory's mode kept others out
		l.Close()
		return nil, err
	}
	return l, nil
}

// privateDir makes sure that dir is a directory of ours that nobody else can enter. Only its last element is created.
func privateDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return checkPrivate(dir, os.Geteuid())
}

// checkPrivate reports whether dir is a real directory (no symlink) that belongs to uid and that nobody else can enter, so
// that what is in it can be trusted as much as uid.
func checkPrivate(dir string, uid int) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := ownerOf(st)
	if !st.IsDir() || st.Mode().Perm()&0o077 != 0 || !ok || owner != uid {
		return errs.New(Path, "use", dir, "it isn't a directory of mode 0700 that belongs to user %d", uid)
	}
	return nil
}

// ownersOnly is a listener that accepts connections of its own user and root alone.
type ownersOnly struct {
	*net.UnixListener
	log  *slog.Logger
	also string // a symlink to the socket; "" means none
}

// alias makes a symlink beside the socket under the mountpoint's name, so that a program in the mount finds the daemon.
func (l *ownersOnly) alias(path, workspace, mountpoint string) error {
	if mountpoint == "" || mountpoint == workspace {
		return nil
	}
	l.also = filepath.Join(filepath.Dir(path), SocketName(mountpoint))
	if err := os.Remove(l.also); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Close()
		return err
	}
	if err := os.Symlink(filepath.Base(path), l.also); err != nil {
		l.Close()
		return err
	}
	return nil
}

// Close stops listening and removes the socket.
func (l *ownersOnly) Close() error {
	if l.also != "" {
		// A symlink that stays behind leads nowhere, and the next daemon replaces it.
		_ = os.Remove(l.also)
	}
	return l.UnixListener.Close()
}

// Accept waits for the next connection of somebody who may have one.
func (l *ownersOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(c)
		if err == nil && (uid == 0 || uid == os.Geteuid()) {
			return c, nil
		}
		l.log.Warn("connection refused", "uid", uid, "error", err)
		c.Close()
	}
}

// dialSocket connects to a socket that FindSocket gave.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(ctx, "unix", path)
}

// FindSocket gives the socket of a workspace that a daemon answers on, or NOT_FOUND. Root also finds those of other users.
// The path must be absolute, symlinks resolved; it is not looked at, since a mount may be dead or closed to root.
func FindSocket(ctx context.Context, workspace string) (string, error) {
	uid := os.Geteuid()
	path, err := answering(ctx, workspace, uid, os.Getenv("XDG_RUNTIME_DIR"))
	if err == nil || uid != 0 {
		return path, err
	}
	for _, other := range socketUsers() {
		if path, e := answering(ctx, workspace, other, ""); e == nil {
			return path, nil
		}
	}
	return "", err
}

// socketUsers gives the users who seem to have sockets. The names prove nothing: answering looks at the owners.
func socketUsers() []int {
	var uids []int
	for _, form := range []string{"/run/user/*/hyperfs", "/tmp/hyperfs-*"} {
		before, after, _ := strings.Cut(form, "*")
		dirs, _ := filepath.Glob(form) // a bad pattern is its only error
		for _, dir := range dirs {
			name := strings.TrimSuffix(strings.TrimPrefix(dir, before), after)
			if uid, err := strconv.Atoi(name); err == nil && uid > 0 {
				uids = append(uids, uid)
			}
		}
	}
	return uids
}

// answering finds the first socket of a user that accepts a connection. What others could have put there is passed over.
func answering(ctx context.Context, workspace string, uid int, runtimeDir string) (string, error) {
	for _, path := range socketsOf(workspace, uid, runtimeDir) {
		if checkPrivate(filepath.Dir(path), uid) != nil {
			continue
		}
		if c, err := dialSocket(ctx, path); err == nil {
			c.Close()
			return path, nil
		}
	}
	return "", noDaemon(workspace)
}
