package fs

import "testing"

func TestAMountStaysWhereUnmountingDoesNotSpread(t *testing.T) {
	private := mountEntry{device: "0:50", kind: mountType, peers: nil}
	shared := mountEntry{device: "0:50", kind: mountType, peers: []string{"shared:7", "master:1"}}
	for _, tt := range []struct {
		own   mountEntry
		there string
		want  bool
	}{
		{private, "", false},
		{private, "90 1 0:50 /.hyperfs/branches/b /w rw - fuse.hyperfs hyperfs rw\n", true},
		{private, "90 1 0:50 /.hyperfs/branches/b /w rw,relatime master:7 - fuse.hyperfs hyperfs rw\n", true},
		{private, "90 1 0:50 / /w rw - fuse.hyperfs hyperfs rw\n", false},
		{private, "90 1 0:50 /.hyperfs/branches/b /bound rw - fuse.hyperfs hyperfs rw\n", false},
		{private, "90 1 0:51 /.hyperfs/branches/b /w rw - fuse.hyperfs hyperfs rw\n", false},
		{private, "90 1 0:50 /.hyperfs/branches/b /w rw - tmpfs hyperfs rw\n", false},
		{shared, "90 1 0:50 /.hyperfs/branches/b /w rw - fuse.hyperfs hyperfs rw\n", true},
		{shared, "90 1 0:50 /.hyperfs/branches/b /w rw shared:7 - fuse.hyperfs hyperfs rw\n", false},
		{shared, "90 1 0:50 /.hyperfs/branches/b /w rw shared:9 master:7 - fuse.hyperfs hyperfs rw\n", false},
		{shared, "90 1 0:50 /.hyperfs/branches/b /w rw shared:9 master:1 - fuse.hyperfs hyperfs rw\n", true},
	} {
		if got := staysIn(tt.there, "80 1 0:50 /.hyperfs/branches/b /bound rw - fuse.hyperfs hyperfs rw\n", tt.own); got != tt.want {
			t.Errorf("%v, and there %q: %v", tt.own.peers, tt.there, got)
		}
	}
}
