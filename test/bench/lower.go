package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lower is a filesystem that hyperfs is mounted on.
type lower struct {
	name string // tmpfs or disk
	dir  string // an empty directory on it
	kind string // the filesystem's own name
}

func lowers(o options) []lower {
	var all []lower
	if o.lower != "disk" {
		all = append(all, lower{name: "tmpfs", dir: o.shm, kind: fsName(o.shm)})
	}
	if o.lower != "tmpfs" {
		all = append(all, lower{name: "disk", dir: diskDir(o), kind: fsName(diskDir(o))})
	}
	return all
}

// diskDir prefers the system's directory for temporary files, unless that is in memory.
func diskDir(o options) string {
	switch {
	case o.disk != "":
		return o.disk
	case fsName(os.TempDir()) == "tmpfs":
		return "/var/tmp"
	}
	return os.TempDir()
}

// fsName names the filesystem that dir is on, by the magic numbers of statfs(2).
func fsName(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "unknown"
	}
	switch st.Type {
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	}
	return "other"
}

// removeTree removes dir, also where directories in it are read-only.
func removeTree(dir string) {
	if os.RemoveAll(dir) == nil {
		return
	}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}

// dropCaches makes the kernel forget what it can of directories and inodes, and as root only.
func dropCaches() {
	unix.Sync()
	os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0)
}

// installed reports whether all commands are there.
func installed(commands ...string) bool {
	for _, c := range commands {
		if _, err := exec.LookPath(c); err != nil {
			return false
		}
	}
	return true
}
