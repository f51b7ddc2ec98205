package session

import (
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// isDead reports whether a path can't be looked at because the daemon of a mount is gone, or is just going.
func isDead(err error) bool { return errs.IsDeadMount(err) }

// branchAt gives the branch that is mounted at dir for this process, "" where it is none.
func branchAt(dir string) string {
	all, err := mounts()
	if err != nil {
		return "" // who can't see mounts is in none of ours
	}
	name := ""
	for _, m := range all {
		if m.point != dir {
			continue
		}
		name = "" // what lies over others counts
		if rest, ok := strings.CutPrefix(m.root, "/"+overlay.StoreName+"/branches/"); ok {
			name, _, _ = strings.Cut(rest, "/") // of a branch that was dropped the kernel adds "//deleted"
		}
	}
	return name
}
