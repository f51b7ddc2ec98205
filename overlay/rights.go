//go:build linux

package overlay

import (
	"os"
	"slices"

	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// An ordinary user may write to what is somebody else's, and to a file of their own whose group they are not in. What such an inode was like can't
// be given to it or to another one again in every case, so a rollback asks before it touches anything.

// mayGive reports whether the daemon can make an inode of its own somebody's.
func (t *Tree) mayGive(uid, gid uint32) bool {
	return t.privileged || int(uid) == unix.Geteuid() && inGroup(gid)
}

func inGroup(gid uint32) bool {
	groups, err := os.Getgroups()
	return int(gid) == unix.Getegid() || err == nil && slices.Contains(groups, int(gid))
}

// mayRestore refuses what the daemon has no right to put back. same says that nothing but the change time differs of what is somebody else's, and
// that it is to be left alone.
func (p *plan) mayRestore(r *inodeRestore, st *unix.Statx_t) (same bool, err error) {
	if p.t.privileged {
		return false, nil
	}
	a, owner := &r.attr, st.Uid == r.attr.UID && st.Gid == r.attr.GID
	mode := uint32(st.Mode)&0o7777 == a.Mode&0o7777
	switch {
	case int(st.Uid) != unix.Geteuid():
		if same = owner && mode && nsOf(st.Mtime) == a.Mtime && r.content == nil && !r.hasX; !same {
			return false, p.notAllowed(r, "it belongs to user %d, and only they and root can put back what it was like", st.Uid)
		}
	case !owner && !p.t.mayGive(a.UID, a.GID):
		return false, p.notAllowed(r, "it belonged to user %d and group %d, and only root can give it back", a.UID, a.GID)
	case a.Mode&unix.S_ISGID != 0 && !inGroup(a.GID) && (!mode || r.content != nil || r.hasX):
		return false, p.notAllowed(r, "it had set-group-ID for group %d, which only its members and root can give it", a.GID)
	}
	return same, nil
}

// notAllowed is no damage: another user can.
func (p *plan) notAllowed(r *inodeRestore, format string, args ...any) error {
	return errs.New(errs.Rollback, "rollback", p.slotPath(r.slot), format, args...).
		WithHint("nothing was changed; root can roll back")
}

// mayReplace reports whether another inode can take the place of an old one, with its owner, and its directory can be given its time again.
func (p *plan) mayReplace(r *inodeRestore) bool {
	if p.t.privileged {
		return true
	}
	dir, err := p.view.find(r.slot.Dir)
	if err != nil || dir == nil || !p.t.mayGive(r.attr.UID, r.attr.GID) {
		return false
	}
	var st unix.Statx_t
	return p.view.statNode(dir, &st) == nil && int(st.Uid) == unix.Geteuid()
}
