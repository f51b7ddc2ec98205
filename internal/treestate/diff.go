package treestate

import (
	"bytes"
	"fmt"
	"sort"
	"time"
)

// Compare says what Diff looks at. The zero value compares everything that every filesystem can give back.
type Compare struct {
	// Mtime decides whether two mtimes (ns) agree; nil means they must be equal.
	Mtime func(a, b Entry) bool
	// Holes finds holes of the first state that are filled in the second. Both must have been captured with them.
	Holes bool
	// Nlink compares the number of links, which may count names outside the tree.
	Nlink bool
	// Limit is the number of differences after which Diff stops looking; 0 means 50.
	Limit int
}

// Diff gives one line for each difference between a, which is what should be, and b, which is what is. None means that the
// trees are equal.
func Diff(a, b State) []string { return Compare{}.Diff(a, b) }

// Diff is the package's Diff with what c says left out or added.
func (c Compare) Diff(a, b State) []string {
	limit := c.Limit
	if limit == 0 {
		limit = 50
	}
	var out []string
	for i, p := range union(a, b) {
		if len(out) >= limit {
			return append(out, fmt.Sprintf("… and maybe more: %d paths were not compared", len(a)+len(b)-i))
		}
		ea, inA := a[p]
		eb, inB := b[p]
		switch {
		case !inB:
			out = append(out, fmt.Sprintf("%q: missing, should be a %s", p, TypeName(ea.Mode)))
		case !inA:
			out = append(out, fmt.Sprintf("%q: should not exist, is a %s", p, TypeName(eb.Mode)))
		default:
			out = append(out, c.entry(ea, eb)...)
		}
	}
	return out
}

func union(a, b State) []string {
	all := make([]string, 0, len(a))
	for p := range a {
		all = append(all, p)
	}
	for p := range b {
		if _, ok := a[p]; !ok {
			all = append(all, p)
		}
	}
	sort.Strings(all)
	return all
}

// entry compares what one path leads to.
func (c Compare) entry(a, b Entry) []string {
	var out []string
	say := func(what string, want, got any) {
		out = append(out, fmt.Sprintf("%q: %s is %v, should be %v", a.Path, what, got, want))
	}
	if a.Mode&modeType != b.Mode&modeType {
		say("type", TypeName(a.Mode), TypeName(b.Mode))
		return out
	}
	if a.Mode != b.Mode {
		say("mode", fmt.Sprintf("%#o", a.Mode&^modeType), fmt.Sprintf("%#o", b.Mode&^modeType))
	}
	if a.UID != b.UID || a.GID != b.GID {
		say("owner", fmt.Sprintf("%d:%d", a.UID, a.GID), fmt.Sprintf("%d:%d", b.UID, b.GID))
	}
	if a.Size != b.Size {
		say("size", a.Size, b.Size)
	}
	if !c.mtimeAgrees(a, b) {
		say("mtime", stamp(a.Mtime), stamp(b.Mtime))
	}
	if a.Rdev != b.Rdev {
		say("rdev", a.Rdev, b.Rdev)
	}
	if a.Unreadable != b.Unreadable {
		say("readability", quoteOr(a.Unreadable, "readable"), quoteOr(b.Unreadable, "readable"))
	} else if a.Sum != b.Sum {
		say("checksum", fmt.Sprintf("%x", a.Sum), fmt.Sprintf("%x", b.Sum))
	}
	if a.Target != b.Target {
		say("symlink target", fmt.Sprintf("%q", a.Target), fmt.Sprintf("%q", b.Target))
	}
	if a.First != b.First {
		say("hard-link group", groupOf(a), groupOf(b))
	}
	if c.Nlink && a.Nlink != b.Nlink {
		say("number of links", a.Nlink, b.Nlink)
	}
	if c.Holes && holesFilled(a, b) {
		say("data", extents(a.Data), extents(b.Data))
	}
	return append(out, xattrDiff(a, b)...)
}

func (c Compare) mtimeAgrees(a, b Entry) bool {
	if c.Mtime != nil {
		return c.Mtime(a, b)
	}
	return a.Mtime == b.Mtime
}

func groupOf(e Entry) string { return fmt.Sprintf("that of %q", e.First) }

func quoteOr(s, empty string) string {
	if s == "" {
		return empty
	}
	return fmt.Sprintf("%q", s)
}

func stamp(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.000000000") }

func xattrDiff(a, b Entry) []string {
	names := make([]string, 0, len(a.Xattrs))
	for n := range a.Xattrs {
		names = append(names, n)
	}
	for n := range b.Xattrs {
		if _, ok := a.Xattrs[n]; !ok {
			names = append(names, n)
		}
	}
	sort.Strings(names)
	var out []string
	for _, n := range names {
		va, inA := a.Xattrs[n]
		vb, inB := b.Xattrs[n]
		switch {
		case !inB:
			out = append(out, fmt.Sprintf("%q: xattr %q is missing, should be %q", a.Path, n, va))
		case !inA:
			out = append(out, fmt.Sprintf("%q: xattr %q should not be there, is %q", a.Path, n, vb))
		case va != vb:
			out = append(out, fmt.Sprintf("%q: xattr %q is %q, should be %q", a.Path, n, vb, va))
		}
	}
	return out
}

// HoleTolerance is how many bytes a file may be bigger on disk before its holes count as filled: filesystems allocate
// ahead, and in blocks of their own size.
const HoleTolerance = 64 << 10

// holesFilled reports whether b has data where a had holes. Neither what SEEK_DATA says nor the number of blocks is
// exact where space was allocated and never written, so both must have grown. Where extents begin doesn't matter, since a
// filesystem may join and split them, nor that something is allocated no more.
func holesFilled(a, b Entry) bool {
	return dataBytes(b.Data)-dataBytes(a.Data) > HoleTolerance && b.Allocated-a.Allocated > HoleTolerance
}

func dataBytes(data []Extent) int64 {
	var n int64
	for _, x := range data {
		n += x.Len
	}
	return n
}

func extents(data []Extent) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d bytes", dataBytes(data))
	for i, x := range data {
		if i == 8 {
			b.WriteString(" …")
			break
		}
		fmt.Fprintf(&b, " [%d+%d]", x.Off, x.Len)
	}
	return b.String()
}
