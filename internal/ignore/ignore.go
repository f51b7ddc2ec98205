// Package ignore says which paths a list of patterns ignores. The patterns are lines of a .gitignore file at the root, and mean what they mean to git; see
// gitignore(5). It knows no files: whoever asks says what is a directory.
package ignore

import (
	"fmt"
	"slices"
	"strings"
)

// Presets are lists of patterns with a name.
var Presets = map[string][]string{
	"deps": {"node_modules/", ".git/", ".hyperion/"},
}

// Rules are compiled patterns. They never change, and nil is none.
type Rules struct {
	lines    []string
	patterns []pattern
}

// Compile makes rules of lines. It gives nil where no line is a pattern. What git takes for a line but cannot match, such as a class without an
// end, ignores nothing here either.
func Compile(lines []string) (*Rules, error) {
	r := &Rules{lines: slices.Clone(lines)}
	for _, line := range lines {
		if strings.ContainsAny(line, "\x00\n") {
			return nil, fmt.Errorf("the pattern %q has a NUL or a newline in it", line)
		}
		if p, ok := parse(line); ok {
			r.patterns = append(r.patterns, p)
		}
	}
	if len(r.patterns) == 0 {
		return nil, nil
	}
	return r, nil
}

// Lines gives the lines that the rules were made of.
func (r *Rules) Lines() []string {
	if r == nil {
		return nil
	}
	return slices.Clone(r.lines)
}

// Equal reports whether both were made of the same lines.
func (r *Rules) Equal(o *Rules) bool { return slices.Equal(r.Lines(), o.Lines()) }

// Match reports whether the patterns ignore a path by itself: the caller knows that they ignore none of the directories above. The path is relative to the root, with
// slashes between its names.
func (r *Rules) Match(path string, isDir bool) bool {
	if r == nil {
		return false
	}
	base := path[strings.LastIndexByte(path, '/')+1:]
	for i := len(r.patterns) - 1; i >= 0; i-- { // the last one that matches decides
		if p := &r.patterns[i]; p.matches(path, base, isDir) {
			return !p.negated
		}
	}
	return false
}

// Ignored reports whether the patterns ignore a path, or one of the directories above: what is below an ignored directory can't be had back by another pattern.
func (r *Rules) Ignored(path string, isDir bool) bool {
	if r == nil {
		return false
	}
	for i := 0; i < len(path); i++ {
		if path[i] == '/' && r.Match(path[:i], true) {
			return true
		}
	}
	return r.Match(path, isDir)
}
