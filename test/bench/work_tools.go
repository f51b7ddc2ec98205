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

// npmFlags keep npm from asking the network for more than packages, and registries out of lock files.
var npmFlags = []string{"--no-audit", "--no-fund", "--ignore-scripts", "--omit-lockfile-registry-resolved", "--loglevel=error"}

// projectGroup is npm and tsc on a real project: rxjs from its source.
func (b *bench) projectGroup() group {
	return group{
		name:   "project",
		needs:  []string{"node", "npm"},
		shared: makeProject,
		prepare: func(ctx context.Context, dir string) error {
			project, err := findAbove(dir, "project")
			if err != nil {
				return err
			}
			return command(ctx, dir, "cp", "-a", project+"/.", ".")
		},
		workloads: []workload{
			{name: "npm ci from cache", before: removeDir("node_modules"), run: func(ctx context.Context, dir string) error {
				cache, err := findAbove(dir, "npm-cache")
				if err != nil {
					return err
				}
				return npm(ctx, dir, cache, "ci", "--offline")
			}},
			{name: "tsc of rxjs", before: removeDir("dist"), run: tsc},
		},
	}
}

// tsc compiles the project. That it finds fault with some types doesn't matter; it writes everything all the same.
func tsc(ctx context.Context, dir string) error {
	err := command(ctx, dir, "node", "node_modules/typescript/bin/tsc", "-p", ".")
	if _, missing := os.Stat(filepath.Join(dir, "dist", "index.js")); missing != nil {
		return err
	}
	return unlessExit(err, 2)
}

// makeProject makes the project and fills npm's cache, next to the targets.
func makeProject(ctx context.Context, lower string) error {
	dir, cache := filepath.Join(lower, "project"), filepath.Join(lower, "npm-cache")
	if _, err := os.Stat(cache); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"package.json": `{ "name": "bench", "version": "1.0.0", "private": true }`,
		"tsconfig.json": `{ "compilerOptions": { "target": "es2020", "module": "commonjs", "lib": ["es2020", "dom"], "types": [],
			"skipLibCheck": true, "declaration": true, "sourceMap": true, "outDir": "dist", "rootDir": "src" },
			"include": ["src/**/*.ts"], "exclude": ["src/internal/umd.ts"] }`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := npm(ctx, dir, cache, "install", "typescript@5.9", "tslib@2", "rxjs@7.8", "eslint@9", "prettier@3", "date-fns@4", "@types/node@20"); err != nil {
		return err
	}
	if err := npm(ctx, dir, cache, "ci"); err != nil { // asks for what install has not: npm ci --offline needs both
		return err
	}
	return command(ctx, dir, "cp", "-r", "node_modules/rxjs/src", "src")
}

func npm(ctx context.Context, dir, cache string, args ...string) error {
	return command(ctx, dir, "npm", append(append(args, "--cache", cache), npmFlags...)...)
}
