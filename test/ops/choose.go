package ops

import (
	"strings"
)

// ExplicitTimes is the first of the mtimes (ns) that Utimes sets, in the year 2000. None is later than ExplicitEnd, so that
// an mtime tells whether it was set or came about.
const (
	ExplicitTimes = 946_684_800_000_000_000
	ExplicitEnd   = ExplicitTimes + 1<<40
)

// What is chosen from. The first is the simplest.
var (
	lengths = []int64{1, 0, 100, 4096, 5000, 65536, 70001, 200_000}
	offsets = []int64{0, 1, 4095, 4096, 10_000, 65_536, 150_000}
	modes   = []uint32{0o644, 0o755, 0o600, 0o444, 0, 0o4755, 0o2755, 0o1777}
	names   = []string{"a", "b", "c", "d", "e", "f", "g \xff\n"}
)

// longName has the 255 bytes that a name can have, which are no UTF-8.
var longName = strings.Repeat("\xc3\x28x", 85)

// acls are valid ACLs in their binary form: a minimal one, and one that names a user and has a mask.
var acls = []Bytes{
	"\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x04\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff",
	"\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x05\x00\xe8\x03\x00\x00" + "\x04\x00\x04\x00\xff\xff\xff\xff" +
		"\x10\x00\x07\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff",
}

// aclOwnerPerm is where the owner's permissions are in an ACL: the first entry is the owner's.
const aclOwnerPerm = 6

func pick[T any](c Chooser, label string, from []T) T { return from[c.Intn(label, len(from))] }

// from chooses one of the lists' paths, "" if there are none.
func from(c Chooser, lists ...[]string) string {
	n := 0
	for _, l := range lists {
		n += len(l)
	}
	if n == 0 {
		return ""
	}
	k := c.Intn("path", n)
	for _, l := range lists {
		if k < len(l) {
			return l[k]
		}
		k -= len(l)
	}
	return ""
}

func (g *Generator) any(c Chooser, v View) string    { return from(c, v.Files, v.Dirs, v.Others) }
func (g *Generator) nonDir(c Chooser, v View) string { return from(c, v.Files, v.Others) }
func (g *Generator) dir(c Chooser, v View) string    { return from(c, v.Dirs) }

// file chooses a regular file, or rarely something else, to see that it is refused.
func (g *Generator) file(c Chooser, v View) string {
	if c.Intn("odd", 24) == 23 {
		return g.any(c, v)
	}
	return from(c, v.Files)
}

// fresh gives a path in the top or in some directory; it may exist.
func (g *Generator) fresh(c Chooser, v View) string {
	dir := ""
	if k := c.Intn("dir", 2*len(v.Dirs)+1); k > 0 {
		dir = v.Dirs[(k-1)/2]
	}
	if strings.Count(dir, "/") > 5 {
		dir = ""
	}
	if c.Intn("long", 40) == 39 {
		return under(dir, longName)
	}
	return under(dir, pick(c, "name", names))
}

func under(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func split(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}
