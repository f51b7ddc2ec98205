package strategy

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// ram is the tier tmpfs: pure-manifest in RAM. Preimages survive the daemon, not a reboot. They are in the session of
// their store: see session.
type ram struct {
	manifest
	session *session
}

// Errors of a trial that was not made.
var (
	errSwitchedOff = errors.New("it is switched off")
	errNoSync      = errors.New("RAM does not survive a loss of power, as was asked for")
)

func ramPath(o Options) string {
	if o.RAM != "" {
		return o.RAM
	}
	if uid := os.Geteuid(); uid != 0 {
		return "/dev/shm/hyperfs-" + strconv.Itoa(uid)
	}
	return "/dev/shm/hyperfs"
}

// openRAM opens the directory of all sessions, and makes it if there is none. Whoever else could write there could put
// something else in the place of a session, so it must be ours alone.
func openRAM(o Options) (dir, error) {
	path := ramPath(o)
	if err := unix.Mkdir(path, 0o700); err != nil && err != unix.EEXIST {
		return dir{}, fmt.Errorf("make %s: %w", path, err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return dir{}, fmt.Errorf("open %s: %w", path, err)
	}
	d := dir{file{fd}}
	if err := checkRAM(d); err != nil {
		_ = d.close()
		return dir{}, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

func checkRAM(d dir) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(d.fd, &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return errors.New("it is not on a tmpfs")
	}
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return errors.New("others can write there")
	}
	return nil
}

// tryTmpfs copies a file in RAM. The files have no names, as other processes try there too.
func tryTmpfs(s site) error {
	if s.o.Sync {
		return errNoSync
	}
	if s.o.NoRAM {
		return errSwitchedOff
	}
	d, err := openRAM(s.o)
	if err != nil {
		return err
	}
	defer func() { _ = d.close() }()
	src, err := d.createNameless()
	if err != nil {
		return fmt.Errorf("create a file: %w", err)
	}
	defer func() { _ = src.close() }()
	dst, err := d.createNameless()
	if err != nil {
		return fmt.Errorf("create a file: %w", err)
	}
	defer func() { _ = dst.close() }()
	if err := tryWith(dst, src, putCopy); err != nil {
		return err
	}
	return roomFor(d, minRoom)
}

// createNameless makes a file that goes away when it is closed.
func (d dir) createNameless() (file, error) {
	fd, err := d.openat(".", unix.O_RDWR|unix.O_TMPFILE)
	return file{fd}, err
}

// minRoom is how much space a tmpfs must have for more than a few preimages to fit, in bytes.
const minRoom = 256 << 10

// roomFor fails with ENOSPC where a tmpfs would not have a sixteenth of its size left after taking n bytes more: others use
// it too, and what they would get is ENOSPC or SIGBUS.
func roomFor(d dir, n int64) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(d.fd, &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if fs.Blocks == 0 { // without a limit
		return nil
	}
	free := (int64(fs.Bavail) - int64(fs.Blocks/16)) * fs.Bsize
	if n > free {
		return fmt.Errorf("%d bytes are wanted in RAM and %d are to be had: %w", n, max(free, 0), unix.ENOSPC)
	}
	return nil
}

func openTmpfs(s site) (Strategy, error) {
	ss, err := openSession(s, true)
	if err != nil {
		return nil, err
	}
	return ramOf(s, ss), nil
}

func openSavedTmpfs(s site) (Strategy, error) {
	ss, err := openSession(s, false)
	if err != nil {
		return nil, err
	}
	return ramOf(s, ss), nil
}

func ramOf(s site, ss *session) Strategy {
	_ = s.dir.close()
	return ram{manifest{preimages{dir: ss.dir, volatile: true}, Tmpfs}, ss}
}

// Save is Strategy.Save.
func (r ram) Save(src *os.File, name string) (Ref, error) {
	defer runtime.KeepAlive(src)
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return Ref{}, failed("save", name, os.NewSyscallError("fstat", err))
	}
	if err := roomFor(r.dir, min(st.Size, st.Blocks*512)); err != nil {
		return Ref{}, failed("save", name, err)
	}
	return r.manifest.Save(src, name)
}

// Close is Strategy.Close. A session without preimages goes away.
func (r ram) Close() error { return r.session.close() }
