package strategy

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// session is the directory in RAM that has the volatile preimages of one store. It belongs to the store, not to the
// process: a daemon that was killed finds its preimages when it comes back. The store knows its session by idFile in the
// directory of its durable preimages; the session knows its store by ownerFile. Whoever has lockFile locked (flock(2))
// lives.
type session struct {
	base dir // of all sessions
	dir  dir
	id   string
	lock file
}

const (
	idFile    = ".session"
	lockFile  = ".lock"
	ownerFile = ".store"
)

// openSession opens the session of the store of s, and locks it. With create, it makes what is missing, and takes sessions
// away that nobody needs; without, a session that is not there is ErrMissing.
func openSession(s site, create bool) (*session, error) {
	id, err := sessionID(s.dir, create)
	if err != nil {
		return nil, err
	}
	base, err := openRAM(s.o)
	if err != nil {
		return nil, err
	}
	ss := &session{base: base, id: id}
	if err = ss.open(create); err == nil && create {
		err = ss.writeOwner(s.dir)
	}
	if err != nil {
		_ = ss.release()
		return nil, err
	}
	if create {
		collectSessions(base, id)
	}
	return ss, nil
}

// sessionID reads the ID of the store's session, and with create gives it one.
func sessionID(d dir, create bool) (string, error) {
	b, err := d.readSmall(idFile)
	if errors.Is(err, fs.ErrNotExist) && create {
		return newSessionID(d)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the store has never had preimages in RAM: %w", ErrMissing)
	}
	if err != nil {
		return "", err
	}
	id := string(bytes.TrimSpace(b))
	if !isSessionID(id) {
		return "", fmt.Errorf("%s in the store is damaged", idFile)
	}
	return id, nil
}

const idBytes = 16

func isSessionID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == idBytes && id == strings.ToLower(id)
}

func newSessionID(d dir) (string, error) {
	id := make([]byte, idBytes)
	_, _ = rand.Read(id)
	text := hex.EncodeToString(id)
	return text, d.writeSmall(idFile, []byte(text+"\n"))
}

// Somebody who looks for sessions to collect holds the lock for a moment.
const (
	lockTries = 20
	lockWait  = 20 * time.Millisecond
)

// open opens and locks the session's directory. A collector may take it away until it is locked; then it is made again.
func (ss *session) open(create bool) error {
	for range 10 {
		if create {
			if err := unix.Mkdirat(ss.base.fd, ss.id, 0o700); err != nil && err != unix.EEXIST {
				return os.NewSyscallError("mkdirat", err)
			}
		}
		again, err := ss.openOnce()
		for i := 0; errors.Is(err, unix.EWOULDBLOCK) && i < lockTries; i++ {
			ss.closeDir()
			time.Sleep(lockWait)
			again, err = ss.openOnce()
		}
		if errors.Is(err, fs.ErrNotExist) && !create {
			return fmt.Errorf("the preimages in RAM are gone: %w", ErrMissing)
		}
		if err == nil && !again {
			return nil
		}
		ss.closeDir()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.New("the session in RAM is removed again and again")
}

// openOnce reports whether the directory was taken away meanwhile.
func (ss *session) openOnce() (again bool, err error) {
	if ss.dir, err = ss.base.openSubdir(ss.id); err != nil {
		ss.dir = dir{}
		return false, err
	}
	if ss.lock, err = lockIn(ss.dir); err != nil {
		ss.lock = file{}
		return false, err
	}
	var mine, named unix.Stat_t
	if err := unix.Fstat(ss.dir.fd, &mine); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	err = unix.Fstatat(ss.base.fd, ss.id, &named, unix.AT_SYMLINK_NOFOLLOW)
	return err != nil || mine.Ino != named.Ino, nil
}

// lockIn locks a session. EWOULDBLOCK says that its daemon lives.
func lockIn(d dir) (file, error) {
	fd, err := d.openat(lockFile, unix.O_RDONLY|unix.O_CREAT|unix.O_NOFOLLOW)
	if err != nil {
		return file{}, err
	}
	if _, err := retry(func() (int, error) { return 0, unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		_ = unix.Close(fd)
		return file{}, fmt.Errorf("another process has the session in RAM: %w", os.NewSyscallError("flock", err))
	}
	return file{fd}, nil
}

// close ends the use of the session, and takes it away if it holds no preimage.
func (ss *session) close() error {
	if isEmptySession(ss.dir) {
		removeSession(ss.base, ss.dir, ss.id)
	}
	return ss.release()
}

func (ss *session) release() error {
	ss.closeDir()
	return ss.base.close()
}

func (ss *session) closeDir() {
	for _, f := range []*file{&ss.lock, &ss.dir.file} {
		if f.fd > 0 {
			_ = f.close()
		}
		f.fd = 0
	}
}

// owner says which store a session belongs to.
type owner struct {
	path  string // of the directory of the durable preimages, as it was at last
	dev   uint64 // of that directory
	mount string // the mount namespace that path is of
}

// writeOwner notes the store, each time that it is opened: it may have been moved.
func (ss *session) writeOwner(d dir) error {
	o, err := ownerOf(d)
	if err != nil {
		return err
	}
	return ss.dir.writeSmall(ownerFile, []byte(fmt.Sprintf("%d\n%s\n%s", o.dev, o.mount, o.path)))
}

func ownerOf(d dir) (o owner, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return o, os.NewSyscallError("fstat", err)
	}
	o.dev = st.Dev
	if o.path, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(d.fd)); err != nil {
		return o, err
	}
	o.mount, err = os.Readlink("/proc/self/ns/mnt")
	return o, err
}

func readOwner(d dir) (o owner, ok bool) {
	b, err := d.readSmall(ownerFile)
	if err != nil {
		return o, false
	}
	parts := strings.SplitN(string(b), "\n", 3) // a path may have line breaks
	if len(parts) != 3 {
		return o, false
	}
	o.dev, err = strconv.ParseUint(parts[0], 10, 64)
	o.mount, o.path = parts[1], parts[2]
	return o, err == nil && strings.HasPrefix(o.path, "/")
}

func (d dir) openSubdir(name string) (dir, error) {
	fd, err := d.openat(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	return dir{file{fd}}, err
}

// smallMax is more than a file of a session can have, in bytes.
const smallMax = 8192

func (d dir) readSmall(name string) ([]byte, error) {
	f, err := d.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.close() }()
	p := make([]byte, smallMax)
	n, err := f.readAt(p, 0)
	return p[:n], err
}

// writeSmall puts a file with these bytes in place, whole or not at all.
func (d dir) writeSmall(name string, p []byte) error {
	tmp := name + ".new"
	_ = d.remove(tmp) // of a process that died here
	if err := createIn(d, tmp, func(dst file) error {
		if err := write(dst, p, 0); err != nil {
			return err
		}
		return os.NewSyscallError("fsync", dst.sync()) // the session must not be forgotten over a loss of power of the disk alone
	}); err != nil {
		return err
	}
	return os.NewSyscallError("renameat", unix.Renameat(d.fd, tmp, d.fd, name))
}
