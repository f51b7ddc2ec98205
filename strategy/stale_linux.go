package strategy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keepLost is how long a session is kept after its last change when its store is no longer where it was: it may have been
// moved, and then its checkpoints still need the preimages.
const keepLost = 24 * time.Hour

// collectSessions takes away what dead daemons have left in RAM: sessions without preimages, and those whose store is gone. A
// session whose daemon lives is left alone, and so is one that cannot be judged.
func collectSessions(base dir, own string) {
	_ = base.each(func(name string, _ stat) error {
		if name != own && isSessionID(name) {
			collectSession(base, name)
		}
		return nil
	})
}

func collectSession(base dir, id string) {
	d, err := base.openSubdir(id)
	if err != nil {
		return
	}
	defer func() { _ = d.close() }()
	lock, err := lockIn(d)
	if err != nil {
		return
	}
	defer func() { _ = lock.close() }()
	if isEmptySession(d) || isLost(d, id) {
		removeSession(base, d, id)
	}
}

var errNotEmpty = errors.New("there is a preimage")

func isEmptySession(d dir) bool {
	return d.each(func(name string, _ stat) error {
		if strings.HasPrefix(name, ".") {
			return nil
		}
		return errNotEmpty
	}) == nil
}

// isLost reports whether the store of a session is gone for good, as far as that can be known.
func isLost(d dir, id string) bool {
	o, ok := readOwner(d)
	if !ok {
		return false
	}
	st, err := d.stat()
	if err != nil || time.Since(time.Unix(0, st.mtime)) < keepLost {
		return false
	}
	here, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil || here != o.mount {
		return false // the path means something else here
	}
	return o.isGone(id)
}

// isGone looks for the store on the filesystem that it was on. One that is not mounted, or hidden by a mount, is not gone.
func (o owner) isGone(id string) bool {
	for path := o.path; ; path = filepath.Dir(path) {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if (err == unix.ENOENT || err == unix.ENOTDIR) && path != "/" {
			continue
		}
		if err != nil {
			return false
		}
		d := dir{file{fd}}
		defer func() { _ = d.close() }()
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Dev != o.dev {
			return false
		}
		if path != o.path {
			return true
		}
		now, err := sessionID(d, false)
		return errors.Is(err, ErrMissing) || err == nil && now != id
	}
}

// removeSession takes a session away that is locked by us. The lock goes last but for the directory: until then nobody else
// takes it for theirs.
func removeSession(base, d dir, id string) {
	_ = d.each(func(name string, _ stat) error {
		if name != lockFile {
			_ = d.remove(name)
		}
		return nil
	})
	_ = d.remove(lockFile)
	_ = unix.Unlinkat(base.fd, id, unix.AT_REMOVEDIR)
}
