package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// makeTree writes files of about size bytes into directories of 100 each. The same arguments always give the same tree.
func makeTree(dir string, files, size int) error { return writeTree(dir, texts(files, size)) }

// texts are what makeTree writes.
func texts(files, size int) [][]byte {
	r := rand.New(rand.NewPCG(1, uint64(files)))
	all := make([][]byte, files)
	for i := range all {
		all[i] = words(r, size/2+r.IntN(size))
	}
	return all
}

// writeTree is makeTree with texts that are there already, where making them is not to be measured.
func writeTree(dir string, texts [][]byte) error {
	for i, text := range texts {
		path := filepath.Join(dir, treePath(i))
		if i%100 == 0 {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// treePath is the path of the i-th file of makeTree.
func treePath(i int) string {
	return fmt.Sprintf("d%02d/e%02d/file%d.ts", i/10000, i/100%100, i)
}

// makeModules writes a tree like a node_modules: packages of some files, most of them small, a few large.
func makeModules(dir string, files int) error {
	r := rand.New(rand.NewPCG(2, 2))
	for i, pkg := 0, 0; i < files; pkg++ {
		for _, sub := range []string{"", "lib", "dist/cjs", "dist/esm"} {
			d := filepath.Join(dir, fmt.Sprintf("package-%d", pkg), sub)
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
			for n := r.IntN(12); n > 0 && i < files; n-- {
				size := 200 + int(r.ExpFloat64()*2500)
				if r.IntN(200) == 0 {
					size *= 50
				}
				if err := os.WriteFile(filepath.Join(d, fmt.Sprintf("module-%d.js", i)), words(r, size), 0o644); err != nil {
					return err
				}
				i++
			}
		}
	}
	return nil
}

// words gives size bytes of text in lines.
func words(r *rand.Rand, size int) []byte {
	list := []string{"const ", "export ", "return ", "value", "function ", " = ", "();\n", "{\n", "}\n", "this.", "index", " + "}
	var b bytes.Buffer
	for b.Len() < size {
		b.WriteString(list[r.IntN(len(list))])
	}
	return b.Bytes()[:size]
}
