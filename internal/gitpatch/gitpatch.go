// Package gitpatch writes patches that `git apply` takes, inside a git repository and outside of one: text as unified
// diffs, everything else in git's binary form, with renames, mode changes, symlinks and names of arbitrary bytes.
//
// The form is the one of git-diff(1), "Generating patch text with -p"; the binary form is that of git's diff.c and
// base85.c. Blobs are named by their SHA-1, so that the binary parts need a repository in git's usual SHA-1 format, or
// none at all. git refuses a patch of more than 1,023 MiB.
package gitpatch

import (
	"bufio"
	"fmt"
	"io"
	"slices"
)

// The modes that git knows. Every other mode is an error of Write.
const (
	ModeFile       uint32 = 0o100644
	ModeExecutable uint32 = 0o100755
	ModeSymlink    uint32 = 0o120000
)

// File is one state of a file.
type File struct {
	Path string // slash-separated, relative, raw bytes; Representable must hold
	Mode uint32 // one of the Mode constants
	Size int64  // bytes; what Open yields

	// Open gives the bytes of a regular file, or the target of a symlink. It may be called more than once, and must
	// yield the same every time: Write fails where it doesn't.
	Open func() (io.ReadCloser, error)
}

// Change is one file that differs: created (Old is nil), deleted (New is nil), renamed (the paths differ) or modified.
type Change struct {
	Old, New *File
}

// Write writes the patch that turns the old files into the new ones. A change of nothing that git can see writes
// nothing. The order is that of changes, but for deletions and creations
// of paths that other changes make or take away.
//
// Memory is bounded: texts of more than 8 MiB or 250,000 lines are written in the binary form, which needs no more than a
// buffer.
func Write(w io.Writer, changes []Change) error {
	steps, err := plan(changes)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	for _, c := range steps {
		if err := writeChange(out, c); err != nil {
			return fmt.Errorf("patch of %q: %w", c.path(), err)
		}
	}
	return out.Flush()
}

// path is the name under which the change is reported.
func (c Change) path() string {
	if c.New != nil {
		return c.New.Path
	}
	return c.Old.Path
}

// plan checks the changes, makes a deletion and a creation of those that need it, and brings all into an order that git
// apply understands.
func plan(changes []Change) ([]Change, error) {
	var steps []Change
	for _, c := range changes {
		if err := c.check(); err != nil {
			return nil, err
		}
		if c.isTwo() {
			steps = append(steps, Change{Old: c.Old}, Change{New: c.New})
		} else {
			steps = append(steps, c)
		}
	}
	return inOrder(steps), nil
}

// inOrder moves to the front every deletion of a path that another change makes again, and to the end every creation
// of a path that another change took away. git apply reads the state that a change starts from out of the patch itself
// if an earlier part of the patch made that path; with -R it goes through the patch from its end.
func inOrder(steps []Change) []Change {
	made, gone := map[string]bool{}, map[string]bool{}
	for _, c := range steps {
		if c.Old != nil && c.New != nil && c.Old.Path == c.New.Path {
			continue
		}
		if c.New != nil {
			made[c.New.Path] = true
		}
		if c.Old != nil {
			gone[c.Old.Path] = true
		}
	}
	rank := func(c Change) int {
		switch {
		case c.New == nil && made[c.Old.Path]:
			return -1
		case c.Old == nil && gone[c.New.Path]:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(steps, func(a, b Change) int { return rank(a) - rank(b) })
	return steps
}

// check refuses what has no form in a patch.
func (c Change) check() error {
	if c.Old == nil && c.New == nil {
		return fmt.Errorf("patch: a change of no file")
	}
	for _, f := range []*File{c.Old, c.New} {
		if f == nil {
			continue
		}
		if f.Mode != ModeFile && f.Mode != ModeExecutable && f.Mode != ModeSymlink {
			return fmt.Errorf("patch of %q: git has no mode %o", f.Path, f.Mode)
		}
		if !Representable(f.Path, f.Mode) {
			return fmt.Errorf("patch of %q: git applies no patch to such a path", f.Path)
		}
	}
	return nil
}

// isTwo reports whether the change has to be written as a deletion and a creation: one of the type, as git does it, and
// the renaming of a symlink, which git apply otherwise takes to be still there if a directory is to have its name.
func (c Change) isTwo() bool {
	if c.Old == nil || c.New == nil {
		return false
	}
	oldLink, newLink := c.Old.Mode == ModeSymlink, c.New.Mode == ModeSymlink
	return oldLink != newLink || oldLink && c.Old.Path != c.New.Path
}
