// Command manifest proves that a directory tree is what it was: type, mode, owner, size, mtime in ns, checksum, symlink
// target, xattrs and hard-link groups of every name, the store of hyperfs aside.
//
//	manifest save DIR FILE      write down what DIR is, and print a line about it
//	manifest compare FILE DIR   print what differs, and fail if anything does
//	manifest count FILE DIR     print how many names differ
package main

import (
	"encoding/gob"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manifest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: manifest save DIR FILE | compare FILE DIR | count FILE DIR")
	}
	switch args[0] {
	case "save":
		return save(args[1], args[2])
	case "compare":
		return compare(args[1], args[2])
	case "count":
		names, _, err := differences(args[1], args[2])
		fmt.Println(len(names))
		return err
	}
	return fmt.Errorf("there is no %q", args[0])
}

func save(dir, file string) error {
	state, err := treestate.Capture(dir, treestate.Options{})
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := gob.NewEncoder(f).Encode(state); err != nil {
		return err
	}
	fmt.Println(describe(state))
	return f.Close()
}

func compare(file, dir string) error {
	names, lines, err := differences(file, dir)
	if err != nil {
		return err
	}
	for _, line := range lines[:min(10, len(lines))] {
		fmt.Println(line)
	}
	if len(names) > 0 {
		return fmt.Errorf("%d names differ", len(names))
	}
	return nil
}

// differences gives the names that differ between what file tells and what dir is, and a line for each difference.
func differences(file, dir string) (map[string]bool, []string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	var before treestate.State
	if err := gob.NewDecoder(f).Decode(&before); err != nil {
		return nil, nil, err
	}
	now, err := treestate.Capture(dir, treestate.Options{})
	if err != nil {
		return nil, nil, err
	}
	lines := treestate.Compare{Limit: 1 << 30}.Diff(before, now)
	names := map[string]bool{}
	for _, line := range lines {
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return nil, nil, fmt.Errorf("no name in %q", line)
		}
		names[quoted] = true
	}
	return names, lines, nil
}

func describe(s treestate.State) string {
	kinds := map[string]int{}
	var bytes int64
	for _, e := range s {
		kinds[treestate.TypeName(e.Mode)]++
		if e.IsRegular() {
			bytes += e.Size
		}
	}
	parts := []string{fmt.Sprintf("%d files of %d MiB", kinds["file"], bytes>>20), fmt.Sprintf("%d directories", kinds["directory"])}
	if n := kinds["symlink"]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d symlinks", n))
	}
	return strings.Join(parts, ", ")
}
