package fs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// IsMounted reports whether path is the root of a hyperfs mount, dead or alive. It asks the kernel's list of mounts, so
// it does not wait for a daemon. Only the mount that was made last at a path is seen there.
func IsMounted(path string) (bool, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return false, errs.Wrap(errs.Path, "mount", path, err)
	}
	if real, err := resolveParent(abs); err == nil {
		abs = real
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, errs.Wrap(errs.Unsupported, "mount", path, err)
	}
	return topMount(string(mounts), abs).kind == mountType, nil
}

// resolveParent resolves the symlinks of all but the last name: that may be a dead mount, which cannot be asked.
func resolveParent(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	full := filepath.Join(dir, filepath.Base(path))
	if st, err := os.Lstat(full); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		return filepath.EvalSymlinks(full)
	}
	return full, nil
}

// mountEntry is a line of mountinfo.
type mountEntry struct {
	device string // major:minor
	root   string // what of the filesystem it shows; "/" is all of it
	point  string // where
	kind   string // filesystem type
	source string
	peers  []string // the optional fields, as "shared:7" and "master:7"
}

// parseMounts gives all mounts: those over others come after them. A line is, as in proc_pid_mountinfo(5):
// ID, parent, device, root, mountpoint, options, any number of optional fields, "-", type, source, more options.
func parseMounts(mountinfo string) (all []mountEntry) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f, t := strings.Fields(before), strings.Fields(after)
		if ok && len(f) >= 6 && len(t) > 1 {
			all = append(all, mountEntry{device: f[2], root: unescape(f[3]), point: unescape(f[4]), kind: t[0], source: unescape(t[1]), peers: f[6:]})
		}
	}
	return all
}

// topMount gives what was mounted last at path; it is zero where nothing is.
func topMount(mountinfo, path string) (top mountEntry) {
	for _, m := range parseMounts(mountinfo) {
		if m.point == path {
			top = m
		}
	}
	return top
}

// unescape undoes what the kernel does to space, tab, newline and backslash: a backslash and three octal digits.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1:i+4]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '7' {
			return false
		}
	}
	return true
}

// CleanDeadMount takes away a hyperfs mount at mountpoint whose daemon is gone, and reports whether there was one. It
// does so lazily, as programs may still stand in it.
func CleanDeadMount(mountpoint string) (bool, error) {
	mounted, err := IsMounted(mountpoint)
	if err != nil || !mounted {
		return false, err
	}
	if !isDead(mountpoint) {
		return false, nil
	}
	if err := unmount(mountpoint, true); err != nil {
		return false, err
	}
	return true, nil
}

// IsDead reports whether path is a mount of ours whose daemon is gone.
func IsDead(path string) bool {
	mounted, err := IsMounted(path)
	return err == nil && mounted && isDead(path)
}

// isDead reports whether the daemon of a mount is gone. The kernel still knows the attributes of a dead mount's root, so a stat tells nothing; a statfs always
// asks the daemon.
func isDead(mountpoint string) bool {
	var st unix.Statfs_t
	for range 100 {
		err := unix.Statfs(mountpoint, &st)
		if !errs.IsDyingMount(err) {
			return errors.Is(err, unix.ENOTCONN)
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// checkMountpoint fails where nothing can be mounted at path, or a hyperfs mount is there.
func checkMountpoint(path string) error {
	mounted, err := IsMounted(path)
	if err != nil {
		return err
	}
	if mounted {
		return errs.New(errs.Busy, "mount", path, "hyperfs is mounted there already").WithHint("hyperfs unmount " + path)
	}
	st, err := os.Stat(path)
	if err != nil {
		return mountpointError(path, err)
	}
	if !st.IsDir() {
		return errs.New(errs.Path, "mount", path, "it is not a directory")
	}
	return nil
}

// mountpointError is PATH, without the path that a *PathError repeats.
func mountpointError(path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return errs.New(errs.Path, "mount", path, "%w", err)
}
