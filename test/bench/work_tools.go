package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// modulesGroup unpacks, copies and removes a tree like a node_modules.
func (b *bench) modulesGroup() group {
	files := b.scale(13_000)
	return group{
		name:  "tree",
		needs: []string{"tar"},
		shared: func(ctx context.Context, lower string) error {
			src := filepath.Join(lower, "modules")
			defer removeTree(src)
			if err := makeModules(src, files); err != nil {
				return err
			}
			return command(ctx, lower, "tar", "-C", src, "-cf", "modules.tar", ".")
		},
		prepare: func(ctx context.Context, dir string) error {
			if err := os.Mkdir(filepath.Join(dir, "old_modules"), 0o755); err != nil {
				return err
			}
			return untar(ctx, filepath.Join(dir, "old_modules"))
		},
		workloads: []workload{
			{name: fmt.Sprintf("tar x of %d files", files), before: emptyDir("new_modules"),
				run: func(ctx context.Context, dir string) error { return untar(ctx, filepath.Join(dir, "new_modules")) }},
			{name: fmt.Sprintf("cp -a of %d files", files), before: removeDir("copy"), run: exe("cp", "-a", "old_modules", "copy")},
			{name: fmt.Sprintf("rm -rf of %d new files", files), before: copyModules("gone"), fresh: true, run: exe("rm", "-rf", "gone")},
			{name: fmt.Sprintf("rm -rf of %d old files", files), before: copyModules("gone"), run: exe("rm", "-rf", "gone")},
			{name: fmt.Sprintf("mv of a directory of %d files", files), before: both(removeDir("moved"), copyModules("moving")), run: exe("mv", "moving", "moved")},
		},
	}
}

func untar(ctx context.Context, dir string) error {
	archive, err := findAbove(dir, "modules.tar")
	if err != nil {
		return err
	}
	return command(ctx, dir, "tar", "-xf", archive)
}

// findAbove finds what a group's shared made, next to the targets, from inside a target.
func findAbove(dir, name string) (string, error) {
	for up := filepath.Dir(dir); up != "/"; up = filepath.Dir(up) {
		if _, err := os.Stat(filepath.Join(up, name)); err == nil {
			return filepath.Join(up, name), nil
		}
	}
	return "", fmt.Errorf("no %s above %s", name, dir)
}

// copyShared prepares a tree that is a copy of one that a group's shared made.
func copyShared(name string) func(context.Context, string) error {
	return func(ctx context.Context, dir string) error {
		tree, err := findAbove(dir, name)
		if err != nil {
			return err
		}
		return command(ctx, dir, "cp", "-a", tree+"/.", ".")
	}
}

func emptyDir(name string) func(context.Context, string, int) error {
	return func(_ context.Context, dir string, _ int) error {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
		return os.Mkdir(filepath.Join(dir, name), 0o755)
	}
}

// copyModules makes a copy of old_modules.
func copyModules(name string) func(context.Context, string, int) error {
	return func(ctx context.Context, dir string, _ int) error {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
		return command(ctx, dir, "cp", "-a", "old_modules", name)
	}
}

// both is two steps before a workload.
func both(first, second func(context.Context, string, int) error) func(context.Context, string, int) error {
	return func(ctx context.Context, dir string, n int) error {
		if err := first(ctx, dir, n); err != nil {
			return err
		}
		return second(ctx, dir, n)
	}
}
