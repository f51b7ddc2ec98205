package session

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// devices are those that a command in a sandbox may use, beside terminals that it makes itself.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// terminals is where those are. The others', also of the same user, are not there: they could be read from and written to.
const terminals = "/dev/pts"

// kind is what becomes of a path in a sandbox.
type kind int

const (
	writable    kind = iota // as it was
	top                     // as it was, but what is mounted below it is read-only
	readOnly                // nothing can be changed; nor is there a device
	device                  // it can be used, but not changed
	socket                  // there is a file in its place that leads nowhere
	scratch                 // an empty directory in RAM
	ptys                    // a directory for new terminals
	multiplexer             // the device that makes them
	hidden                  // an empty directory, read-only
)

// spot is a path in a sandbox that is unlike what it is below.
type spot struct {
	path string
	kind kind
	from string // what is shown there
	tree int    // a descriptor of what is shown there; -1 if that is made anew
}

// confine makes everything read-only and without devices, and then puts over that what is different, from the top
// down: of nested paths the inner one counts.
//
// What is put there was cloned before, with the mounts below it and with its flags. So nothing has to be allowed again, which the
// kernel would refuse for a mount that was read-only before. /proc is read-only with the rest: as root one could set the kernel through it.
func (h helper) confine() error {
	if err := forbidNamespaces(); err != nil {
		return err
	}
	spots, err := h.spots()
	if err != nil {
		return err
	}
	for i := range spots {
		if err := spots[i].clone(); err != nil {
			return err
		}
		if spots[i].tree >= 0 {
			defer unix.Close(spots[i].tree)
		}
	}
	if err := setAttr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV, 0); err != nil {
		return unsupported("mounts cannot be made read-only", err)
	}
	for _, s := range spots {
		if err := s.attach(); err != nil {
			return err
		}
	}
	for _, s := range spots { // not before: there are mountpoints to be made in them
		if s.kind != hidden {
			continue
		}
		if err := setAttr(unix.AT_FDCWD, s.path, 0, unix.MOUNT_ATTR_RDONLY, 0); err != nil {
			return unsupported(s.path+" cannot be made read-only", err)
		}
	}
	// What of the helper /proc shows is for no one: it has more rights than the command.
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// spots lists what is unlike the rest, outer paths first. Of one path the first counts.
func (h helper) spots() ([]spot, error) {
	aliases, err := h.aliases()
	if err != nil {
		return nil, err
	}
	from := cmp.Or(h.Source, h.Workspace)
	spots := []spot{{path: h.Workspace, kind: writable, from: from}}
	for _, w := range h.Sandbox.Write {
		if within(h.Workspace, w) {
			continue // it can be written to; and where a branch stands there, this is another file by now
		}
		if w == "/" {
			return nil, invalid("write", "/ is everything: that is no sandbox")
		}
		for _, a := range aliases {
			if within(a, w) {
				return nil, errs.New(errs.Path, op, w, "it belongs to what is to be protected: the command would get past its branch")
			}
		}
		spots = append(spots, spot{path: w, kind: top, from: w})
	}
	for _, a := range aliases {
		spots = append(spots, spot{path: a, kind: readOnly, from: a})
	}
	spots = append(spots, h.usual()...)
	slices.SortStableFunc(spots, func(a, b spot) int { return cmp.Compare(depth(a.path), depth(b.path)) })
	return h.prune(spots), nil
}

// depth orders paths so that what contains others comes before them.
func depth(path string) int {
	if path == "/" {
		return 0
	}
	return strings.Count(path, "/")
}

// usual gives what is in every sandbox.
func (h helper) usual() []spot {
	spots := []spot{{path: terminals, kind: ptys}, {path: "/dev/ptmx", kind: multiplexer}}
	if real, err := filepath.EvalSymlinks("/tmp"); err == nil {
		spots = append(spots, spot{path: real, kind: top, from: real})
	}
	if real, err := filepath.EvalSymlinks("/dev/shm"); err == nil {
		spots = append(spots, spot{path: real, kind: scratch})
	}
	for _, d := range devices {
		if real, err := filepath.EvalSymlinks(d); err == nil {
			spots = append(spots, spot{path: real, kind: device, from: real})
		}
	}
	for _, dir := range slices.Concat([]string{"/run", "/var/run", h.RuntimeDir}, h.Sandbox.Hide) {
		if real, err := filepath.EvalSymlinks(dir); err == nil && filepath.IsAbs(real) && real != "/" {
			spots = append(spots, spot{path: real, kind: hidden})
		}
	}
	for _, path := range h.Sockets {
		if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 && !within(h.Workspace, path) {
			spots = append(spots, spot{path: path, kind: socket, from: "/dev/null"})
		}
	}
	// The resolver's configuration is often a link into /run.
	if real, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil && within("/run", real) {
		spots = append(spots, spot{path: real, kind: readOnly, from: real})
	}
	return spots
}

// prune leaves out what there is not, what comes twice, and what is hidden already by an empty directory above.
func (h helper) prune(spots []spot) []spot {
	var kept []spot
	for _, s := range spots {
		above := kind(-1) // of the innermost spot that the path is in
		known := false
		for _, k := range kept {
			if within(k.path, s.path) {
				above, known = k.kind, k.path == s.path
			}
		}
		_, err := os.Lstat(s.path)
		unasked := s.kind == hidden || s.kind == socket
		if err == nil && !known && !(unasked && (above == hidden || above == scratch)) {
			kept = append(kept, s)
		}
	}
	return kept
}

// aliases gives the paths under which others could reach what is to be protected: the named ones, and where a branch stands at Workspace all
// that show the workspace itself, or a directory of it.
func (h helper) aliases() ([]string, error) {
	all, err := mounts()
	if err != nil {
		return nil, errs.Wrap(errs.Internal, op, "", err)
	}
	protected := h.Sandbox.Protect
	if h.Source != "" {
		protected = append(slices.Clone(protected), h.Workspace)
	}
	var paths []string
	for _, p := range protected {
		paths = append(paths, p)
		for _, place := range placesOf(p, all) {
			paths = append(paths, place.shownAt(all)...)
		}
	}
	slices.Sort(paths)
	return slices.DeleteFunc(slices.Compact(paths), func(p string) bool {
		return p == h.Workspace || within(h.Workspace, p) && !slices.Contains(h.Sandbox.Protect, p)
	}), nil
}

// clone takes what is shown at the spot now, with what is mounted below.
func (s *spot) clone() error {
	s.tree = -1
	if s.from == "" {
		return nil
	}
	var err error
	s.tree, err = unix.OpenTree(unix.AT_FDCWD, s.from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return unsupported(s.from+" cannot be mounted", err)
	}
	return s.limit()
}

// limit gives the clone the flags of its kind.
func (s *spot) limit() error {
	var err error
	switch s.kind {
	case writable:
		err = setAttr(s.tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, unix.MOUNT_ATTR_NODEV, 0)
	case readOnly, socket:
		err = setAttr(s.tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV, 0)
	case device:
		err = setAttr(s.tree, "", unix.AT_EMPTY_PATH, unix.MOUNT_ATTR_RDONLY, 0)
	case top:
		err = s.limitBelow()
	}
	if err != nil {
		return unsupported("the mount of "+s.from, err)
	}
	return nil
}

// limitBelow makes all but the uppermost mount of a clone read-only, and that one what it was.
func (s *spot) limitBelow() error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.tree, &st); err != nil {
		return err
	}
	attr := uint64(unix.MOUNT_ATTR_RDONLY)
	if info, err := os.Stat(s.from); err == nil && info.IsDir() {
		attr |= unix.MOUNT_ATTR_NODEV
	}
	if err := setAttr(s.tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr, 0); err != nil {
		return err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return nil
	}
	return setAttr(s.tree, "", unix.AT_EMPTY_PATH, 0, unix.MOUNT_ATTR_RDONLY)
}

// attach puts the spot in its place.
func (s spot) attach() error {
	if err := s.makeMountpoint(); err != nil {
		return unsupported(s.path+" cannot be made", err)
	}
	var err error
	switch s.kind {
	case scratch:
		err = unix.Mount("tmpfs", s.path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	case ptys:
		err = unix.Mount("devpts", s.path, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
	case multiplexer:
		err = s.multiplex()
	case hidden:
		err = s.hide()
	default:
		err = unix.MoveMount(s.tree, "", unix.AT_FDCWD, s.path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err != nil {
		return unsupported(s.path+" cannot be mounted", err)
	}
	return nil
}

// makeMountpoint makes what an empty directory above has taken away.
func (s spot) makeMountpoint() error {
	if _, err := os.Lstat(s.path); err == nil {
		return nil
	}
	isDir := true
	if s.tree >= 0 {
		var st unix.Stat_t
		if err := unix.Fstat(s.tree, &st); err != nil {
			return err
		}
		isDir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	}
	if isDir {
		return os.MkdirAll(s.path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(s.path, nil, 0o644)
}

// hide mounts an empty directory. Links that were there are there again: systems find programs through such of /run.
func (s spot) hide() error {
	links := map[string]string{}
	entries, _ := os.ReadDir(s.path) // a directory that we may not read stays empty
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(s.path, e.Name())); err == nil {
			links[e.Name()] = to
		}
	}
	if err := unix.Mount("tmpfs", s.path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(s.path, name)); err != nil {
			return err
		}
	}
	return nil
}

// multiplex puts the device of the new terminals where programs look for it, unless it is a link to there.
func (s spot) multiplex() error {
	if st, err := os.Lstat(s.path); err != nil || st.Mode()&os.ModeSymlink != 0 {
		return err
	}
	return unix.Mount(terminals+"/ptmx", s.path, "", unix.MS_BIND, "")
}

// writable gives the paths that Landlock must let the command write to: as the mounts do.
func (h helper) writable() []string {
	return slices.Concat([]string{h.Workspace, "/tmp", "/dev/shm", terminals, "/dev/ptmx"}, devices, h.Sandbox.Write)
}

// setAttr sets and clears flags of a mount.
func setAttr(dir int, path string, flags uint, set, clear uint64) error {
	return unix.MountSetattr(dir, path, flags, &unix.MountAttr{Attr_set: set, Attr_clr: clear})
}
