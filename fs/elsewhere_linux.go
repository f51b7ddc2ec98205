package fs

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfs/hyperfs/overlay"
)

// usedElsewhere gives a process in a mount namespace of its own that has a branch or a checkpoint of the mount somewhere: an unmount here would not
// reach it, and wait for its end. It is 0 where there is none, or none that this user may look at. Who has the mount only because a new namespace
// begins with all mounts is not meant: there is no telling whether they use it, and most do not.
func (m *Server) usedElsewhere() (pid int) {
	here, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0
	}
	own := topMount(string(here), m.mountpoint)
	if own.kind != mountType {
		return 0
	}
	ns, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return 0
	}
	seen := map[string]bool{ns: true}
	processes, _ := filepath.Glob("/proc/[0-9]*") // a bad pattern is its only error
	for _, dir := range processes {
		ns, err := os.Readlink(dir + "/ns/mnt")
		if err != nil || seen[ns] {
			continue // it has ended, or is somebody else's
		}
		seen[ns] = true
		there, err := os.ReadFile(dir + "/mountinfo")
		if err != nil || !staysIn(string(there), string(here), own) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			return pid
		}
	}
	return 0
}

// staysIn reports whether another namespace has something of our shelf, at a place of its own, which does not go with our mount.
func staysIn(there, here string, own mountEntry) bool {
	binds := map[[2]string]bool{} // ours, of which another namespace may have begun with copies
	for _, b := range parseMounts(here) {
		if b.device == own.device {
			binds[[2]string{b.root, b.point}] = true
		}
	}
	var groups []string // those that our unmount spreads to
	for _, p := range own.peers {
		if id, ok := strings.CutPrefix(p, "shared:"); ok {
			groups = append(groups, "shared:"+id, "master:"+id)
		}
	}
	return slices.ContainsFunc(parseMounts(there), func(b mountEntry) bool {
		spread := slices.ContainsFunc(b.peers, func(p string) bool { return slices.Contains(groups, p) })
		return b.device == own.device && b.kind == mountType && !spread && !binds[[2]string{b.root, b.point}] &&
			strings.HasPrefix(b.root, "/"+overlay.StoreName+"/")
	})
}
