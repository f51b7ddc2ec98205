package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// npmFlags keep npm from asking the network for more than packages, and registries out of lock files.
var npmFlags = []string{"--no-audit", "--no-fund", "--ignore-scripts", "--omit-lockfile-registry-resolved", "--loglevel=error"}

// projectGroup is npm and tsc on a real project: rxjs from its source.
func (b *bench) projectGroup() group {
	return group{
		name:    "project",
		needs:   []string{"node", "npm"},
		slow:    true,
		shared:  b.makeProject,
		prepare: copyShared("project"),
		workloads: []workload{
			{name: "npm ci from cache", before: removeDir("node_modules"), run: func(ctx context.Context, dir string) error {
				cache, err := findAbove(dir, npmCache)
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
func (b *bench) makeProject(ctx context.Context, lower string) error {
	packages := []string{"typescript@5.9", "tslib@2", "rxjs@7.8"}
	if !b.o.quick {
		packages = append(packages, "eslint@9", "prettier@3", "date-fns@4", "@types/node@20")
	}
	dir, err := nodeProject(ctx, lower, "project", packages...)
	if err != nil {
		return err
	}
	if err := npm(ctx, dir, filepath.Join(lower, npmCache), "ci"); err != nil { // asks for what install has not: npm ci --offline needs both
		return err
	}
	if err := command(ctx, dir, "cp", "-r", "node_modules/rxjs/src", "src"); err != nil {
		return err
	}
	return writeSource(dir, "tsconfig.json", `{ "compilerOptions": { "target": "es2020", "module": "commonjs", "lib": ["es2020", "dom"], "types": [],
		"skipLibCheck": true, "declaration": true, "sourceMap": true, "outDir": "dist", "rootDir": "src" },
		"include": ["src/**/*.ts"], "exclude": ["src/internal/umd.ts"] }`)
}

// npmCache is next to the targets.
const npmCache = "npm-cache"

// nodeProject makes a project with packages, next to the targets.
func nodeProject(ctx context.Context, lower, name string, packages ...string) (dir string, err error) {
	dir = filepath.Join(lower, name)
	if err := writeSource(dir, "package.json", `{ "name": "bench", "version": "1.0.0", "private": true }`); err != nil {
		return dir, err
	}
	return dir, npm(ctx, dir, filepath.Join(lower, npmCache), append([]string{"install"}, packages...)...)
}

// jestGroup runs tests with jest, which starts processes, looks through the tree, and keeps what it has transformed in the tree.
func (b *bench) jestGroup() group {
	tests := b.scale(40)
	return group{
		name:  "jest",
		needs: []string{"node", "npm"},
		slow:  true,
		shared: func(ctx context.Context, lower string) error {
			dir, err := nodeProject(ctx, lower, "jest", "jest@30")
			for i := 0; i < tests && err == nil; i++ {
				err = writeTest(dir, i)
			}
			return err
		},
		prepare: copyShared("jest"),
		workloads: []workload{{name: fmt.Sprintf("jest, %d test files", tests), warm: true,
			run: exe("node", "node_modules/jest/bin/jest.js", "--ci", "--silent", "--cacheDirectory", "cache")}},
	}
}

func writeTest(dir string, i int) error {
	source := fmt.Sprintf("exports.sum = (...list) => list.reduce((a, b) => a + b, %d);\n", i)
	if err := writeSource(dir, fmt.Sprintf("src/m%d.js", i), source); err != nil {
		return err
	}
	test := fmt.Sprintf("const { sum } = require(\"./m%d\");\ntest(\"sums begin at %d\", () => expect(sum(1, 2)).toBe(%d));\n", i, i, i+3)
	return writeSource(dir, fmt.Sprintf("src/m%d.test.js", i), test)
}

func npm(ctx context.Context, dir, cache string, args ...string) error {
	return command(ctx, dir, "npm", append(append(args, "--cache", cache), npmFlags...)...)
}
