package fs_test

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/testfs"
)

// notPosix are tests of the suite that fail on a local filesystem too: FcntlFlockLocksFile wants a record lock to keep out
// the process that holds it.
var notPosix = map[string]bool{"FcntlFlockLocksFile": true}

// TestPosix runs the suite of go-fuse, each test in a directory of its own.
func TestPosix(t *testing.T) {
	eachVariant(t, posix)
}

func TestPosixInABranch(t *testing.T) {
	eachShelf(t, func(t *testing.T, s *shelved) { posix(t, &mounted{dir: s.b}) })
}

func TestPosixOnEachFilesystem(t *testing.T) {
	for name, lower := range map[string]func(t *testing.T) string{
		"tmpfs":     func(t *testing.T) string { return testfs.Tmpfs(t, 128<<20) },
		"xfs":       func(t *testing.T) string { return testfs.XFS(t, 512<<20) },
		"btrfs":     func(t *testing.T) string { return testfs.Btrfs(t, 512<<20) },
		"overlayfs": func(t *testing.T) string { return testfs.Overlay(t, nil) },
	} {
		t.Run(name, func(t *testing.T) { posix(t, mountDir(t, lower(t), fs.Options{InPlace: true})) })
	}
}

func posix(t *testing.T, m *mounted) {
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		if notPosix[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir := m.path(name)
			must(t, os.Mkdir(dir, 0o755))
			posixtest.All[name](t, dir)
		})
	}
}
