package testfs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The smallest images that the mkfs programs take, in bytes.
const (
	minBtrfs = 128 << 20
	minXFS   = 320 << 20
	minExt4  = 16 << 20
)

// Btrfs mounts a new btrfs of at least size bytes and returns its root directory.
func Btrfs(t testing.TB, size int64) string {
	t.Helper()
	return onLoop(t, "btrfs", max(size, minBtrfs), "mkfs.btrfs", "-q", "-f")
}

// XFS mounts a new XFS with reflink of at least size bytes and returns its root directory.
func XFS(t testing.TB, size int64) string {
	t.Helper()
	return onLoop(t, "xfs", max(size, minXFS), "mkfs.xfs", "-q", "-f", "-m", "reflink=1")
}

// Ext4 mounts a new ext4 of at least size bytes and returns its root directory.
func Ext4(t testing.TB, size int64) string {
	t.Helper()
	return onLoop(t, "ext4", max(size, minExt4), "mkfs.ext4", "-q", "-F")
}

// Tmpfs mounts a tmpfs that holds at most size bytes (rounded up to a page; 0 means half of the RAM) and returns its root directory.
func Tmpfs(t testing.TB, size int64) string {
	t.Helper()
	need(t)
	return mount(t, "tmpfs", "tmpfs", "size="+strconv.FormatInt(size, 10))
}

// Ramfs mounts a ramfs, which knows neither holes nor limits, and returns its root directory.
func Ramfs(t testing.TB) string {
	t.Helper()
	need(t)
	return mount(t, "ramfs", "ramfs", "")
}

// Overlay mounts an overlayfs, as the root of a container is one, and returns the merged directory. fill, unless it
// is nil, puts files into the lower layer before it is mounted. The layers are in the temporary directory, or on a
// tmpfs if that is an overlayfs itself, which can't hold an upper layer.
func Overlay(t testing.TB, fill func(lower string)) string {
	t.Helper()
	need(t)
	layers := t.TempDir()
	if onOverlay(t, layers) {
		layers = Tmpfs(t, 0)
	}
	dirs := map[string]string{}
	for _, name := range []string{"lower", "upper", "work"} {
		dirs[name] = filepath.Join(layers, name)
		if err := os.Mkdir(dirs[name], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if fill != nil {
		fill(dirs["lower"])
	}
	return mount(t, "overlay", "overlay",
		fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dirs["lower"], dirs["upper"], dirs["work"]))
}

// ReadOnly makes a mount that this package made read-only. It stays so.
func ReadOnly(t testing.TB, dir string) {
	t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatalf("remount %s read-only: %v", dir, err)
	}
}

// onLoop makes a filesystem with mkfs in a sparse image file, and mounts it over a loop device.
func onLoop(t testing.TB, fstype string, size int64, mkfs string, args ...string) string {
	t.Helper()
	need(t, mkfs, "losetup")
	image := filepath.Join(t.TempDir(), fstype+".img")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	run(t, mkfs, append(args, image)...)
	return mount(t, fstype, loopDevice(t, image), "")
}

// loopDevice attaches image to a free loop device, which is detached after the test: by then, or as soon as a lazily
// unmounted filesystem lets go of it.
func loopDevice(t testing.TB, image string) string {
	t.Helper()
	out, err := exec.Command("losetup", "-f", "--show", image).CombinedOutput()
	if err != nil {
		missing(t, "no loop device: %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", dev).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", dev, err, out)
		}
	})
	return dev
}

// mount mounts source on a new temporary directory, writable by everybody as /tmp is, until the test ends.
func mount(t testing.TB, fstype, source, options string) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount(source, dir, fstype, 0, options)
	if err == unix.ENODEV {
		missing(t, "this kernel has no %s", fstype)
	}
	if err == unix.EPERM {
		missing(t, "not allowed to mount %s", fstype)
	}
	if err != nil {
		t.Fatalf("mount %s on %s: %v", source, dir, err)
	}
	t.Cleanup(func() {
		// Lazy: a descriptor that a failed test left open must not leave the mount behind.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return dir
}

// need ends the test unless it runs as root and all programs are there.
func need(t testing.TB, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "mounting needs root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing(t, "%v", err)
		}
	}
}

// missing ends the test because this machine can't run it.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func run(t testing.TB, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
}

func onOverlay(t testing.TB, dir string) bool {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Type) == unix.OVERLAYFS_SUPER_MAGIC
}
