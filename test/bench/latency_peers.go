package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// copies makes a checkpoint with cp -a, and goes back by copying again into the emptied directory.
type copies struct{ dir string }

func (k *copies) name() string { return "cp -a" }
func (k *copies) start(_ context.Context, dir string) (string, error) {
	k.dir = dir
	return filepath.Join(dir, "tree"), os.MkdirAll(filepath.Join(dir, "tree"), 0o755)
}
func (k *copies) save(ctx context.Context) error {
	return command(ctx, k.dir, "cp", "-a", "tree", "copy")
}
func (k *copies) restore(ctx context.Context) error {
	return inOrder(ctx, k.dir, "find tree -mindepth 1 -delete", "cp -a copy/. tree")
}
func (k *copies) forget(ctx context.Context) error { return command(ctx, k.dir, "rm", "-rf", "copy") }
func (k *copies) stop() error                      { return nil }

// commits makes a checkpoint with git commit, and goes back with git stash -u: what git ignores stays as it is.
type commits struct{ dir string }

func (k *commits) name() string { return "git stash" }
func (k *commits) start(_ context.Context, dir string) (string, error) {
	k.dir = dir
	return dir, os.MkdirAll(dir, 0o755)
}
func (k *commits) prepare(ctx context.Context) error { return gitCommitAll(ctx, k.dir) }
func (k *commits) save(ctx context.Context) error {
	return inOrder(ctx, k.dir, "git add -A", "git commit -q --allow-empty -m checkpoint")
}
func (k *commits) restore(ctx context.Context) error {
	return command(ctx, k.dir, "git", "stash", "push", "-q", "-u")
}
func (k *commits) forget(ctx context.Context) error {
	return command(ctx, k.dir, "git", "stash", "drop", "-q")
}
func (k *commits) stop() error { return nil }

// subvolumes makes read-only snapshots of a btrfs subvolume on a loop device, and goes back by putting a writable
// snapshot of one in the place of the subvolume.
type subvolumes struct{ mnt string }

func (k *subvolumes) name() string { return "btrfs" }
func (k *subvolumes) start(ctx context.Context, dir string) (string, error) {
	k.mnt = filepath.Join(dir, "mnt")
	if err := os.MkdirAll(k.mnt, 0o755); err != nil {
		return "", err
	}
	err := inOrder(ctx, dir, "truncate -s 4G image", "mkfs.btrfs -q image", "mount -o loop image mnt", "btrfs -q subvolume create mnt/tree")
	return filepath.Join(k.mnt, "tree"), err
}
func (k *subvolumes) save(ctx context.Context) error {
	return inOrder(ctx, k.mnt, "btrfs -q subvolume snapshot -r tree saved")
}
func (k *subvolumes) restore(ctx context.Context) error {
	return inOrder(ctx, k.mnt, "btrfs -q subvolume snapshot saved fresh", "mv tree left", "mv fresh tree")
}
func (k *subvolumes) forget(ctx context.Context) error {
	return inOrder(ctx, k.mnt, "btrfs -q subvolume delete saved left")
}
func (k *subvolumes) stop() error { return unmountBy(k.mnt, "umount") }

// inOrder runs commands one after the other; none of their arguments has a space.
func inOrder(ctx context.Context, dir string, lines ...string) error {
	for _, line := range lines {
		argv := strings.Fields(line)
		if err := command(ctx, dir, argv[0], argv[1:]...); err != nil {
			return err
		}
	}
	return nil
}
