package testfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEachFilesystemIsMountedAndWritable(t *testing.T) {
	for name, c := range map[string]struct {
		mount func(t *testing.T) string
		magic int64
	}{
		"btrfs":   {func(t *testing.T) string { return Btrfs(t, 0) }, unix.BTRFS_SUPER_MAGIC},
		"xfs":     {func(t *testing.T) string { return XFS(t, 0) }, unix.XFS_SUPER_MAGIC},
		"ext4":    {func(t *testing.T) string { return Ext4(t, 0) }, unix.EXT4_SUPER_MAGIC},
		"tmpfs":   {func(t *testing.T) string { return Tmpfs(t, 1<<20) }, unix.TMPFS_MAGIC},
		"overlay": {func(t *testing.T) string { return Overlay(t, nil) }, unix.OVERLAYFS_SUPER_MAGIC},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.mount(t)
			var st unix.Statfs_t
			if err := unix.Statfs(dir, &st); err != nil {
				t.Fatal(err)
			}
			if int64(st.Type) != c.magic {
				t.Errorf("the filesystem has magic %#x, want %#x", st.Type, c.magic)
			}
			if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNothingStaysMountedAfterATest(t *testing.T) {
	var dir string
	var held *os.File // open beyond the inner test, which must not keep it from unmounting
	t.Run("inner", func(t *testing.T) {
		dir = Ext4(t, 0)
		var err error
		if held, err = os.Create(filepath.Join(dir, "held")); err != nil {
			t.Fatal(err)
		}
	})
	defer func() { _ = held.Close() }()
	if dir == "" {
		t.Skip("the filesystem could not be had")
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		t.Errorf("%s is still mounted", dir)
	}
}

func TestOverlayShowsWhatWasPutIntoTheLowerLayer(t *testing.T) {
	dir := Overlay(t, func(lower string) {
		if err := os.WriteFile(filepath.Join(lower, "old"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := os.Stat(filepath.Join(dir, "old")); err != nil {
		t.Error(err)
	}
}

func TestReadOnlyRefusesWrites(t *testing.T) {
	dir := Tmpfs(t, 1<<20)
	ReadOnly(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err == nil {
		t.Error("a read-only filesystem took a file")
	}
}
