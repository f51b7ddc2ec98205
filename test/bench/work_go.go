package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// goGroup builds a Go program of many packages, with Go's build cache in the tree too, and all built already.
func (b *bench) goGroup() group {
	packages := b.scale(100)
	build := func(ctx context.Context, dir string) error { return goBuild(ctx, dir) }
	return group{
		name:  "go",
		needs: []string{"go"},
		slow:  true,
		shared: func(ctx context.Context, lower string) error {
			dir := filepath.Join(lower, "go-program")
			if err := makeGoModule(dir, packages); err != nil {
				return err
			}
			return goBuild(ctx, dir)
		},
		prepare: copyShared("go-program"),
		workloads: []workload{
			{name: fmt.Sprintf("go build of %d changed packages", packages), before: changeLeaf, run: build},
			{name: "go build, nothing changed", warm: true, run: build},
		},
	}
}

func goBuild(ctx context.Context, dir string) error {
	return command(ctx, dir, "env", "GOCACHE="+filepath.Join(dir, ".cache", "go-build"), "GOFLAGS=", "CGO_ENABLED=0", "go", "build", "-o", "bin/", "./...")
}

// makeGoModule writes packages that all import the package leaf, and a program that imports them all.
func makeGoModule(dir string, packages int) error {
	if err := changeLeaf(context.Background(), dir, -1); err != nil {
		return err
	}
	var imports, calls strings.Builder
	for i := range packages {
		fmt.Fprintf(&imports, "\t\"bench.example/p%d\"\n", i)
		fmt.Fprintf(&calls, "\tfmt.Println(p%d.F0(1))\n", i)
		if err := writeSource(dir, fmt.Sprintf("p%d/p.go", i), goPackage(i)); err != nil {
			return err
		}
	}
	program := "package main\n\nimport (\n\t\"fmt\"\n" + imports.String() + ")\n\nfunc main() {\n" + calls.String() + "}\n"
	if err := writeSource(dir, "main.go", program); err != nil {
		return err
	}
	return writeSource(dir, "go.mod", "module bench.example\n\ngo 1.24\n")
}

func goPackage(i int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package p%d\n\nimport (\n\t\"fmt\"\n\t\"strings\"\n\n\t\"bench.example/leaf\"\n)\n", i)
	for f := range 20 {
		fmt.Fprintf(&b, "\nfunc F%d(n int) string {\n\ts := strings.Repeat(\"x\", n)\n\tfor i := range n {\n\t\ts += fmt.Sprint(i, leaf.Value, %d)\n\t}\n\treturn s\n}\n", f, f)
	}
	return b.String()
}

// changeLeaf changes what all packages depend on.
func changeLeaf(_ context.Context, dir string, n int) error {
	return writeSource(dir, "leaf/leaf.go", fmt.Sprintf("package leaf\n\nconst Value = %d\n", n))
}

func writeSource(dir, name, text string) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
