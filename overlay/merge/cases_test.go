//go:build linux

package merge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay/merge"
	"golang.org/x/sys/unix"
)

const lines = "1\n2\n3\n4\n5\n6\n7\n"

func edited(old, new string) string { return strings.Replace(lines, old, new, 1) }

func fill(w *workspace) {
	w.create("a", lines)
	w.create("bin", "x\x00y\n")
	w.mkdir("d")
	w.create("d/f", "f\n")
	w.create("d/g", "g\n")
	w.mkdir("d/sub")
	w.create("d/sub/s", "s\n")
	w.mkdir("e")
	w.create("e/h", "h\n")
	w.symlink("a", "l")
	w.create("h1", lines)
	w.link("h1", "h2")
	w.create("x", "x\n")
	w.setXattr("x", "user.a", "1")
	w.setXattr("x", "user.b", "1")
	for _, p := range []string{"a", "bin", "d/f", "d/g", "d/sub/s", "e/h", "h1", "x"} {
		w.touch(p, 1_000_000_000)
	}
}

type edit func(w *workspace)

// mergeCase says what the policies make of two edits. Trees are told by how they differ from the base, line by line.
type mergeCase struct {
	name         string
	ours, theirs edit
	want         []string // with the policy merge; nil if it conflicts
	rejected     []string // conflicts with the policy reject, if there are none with merge
	conflicts    []string // conflicts with the policy merge
	asOurs       []string // with the policy ours, if there are conflicts
	asTheirs     []string
}

func nothing(*workspace) {}

var cases = []mergeCase{
	{name: "nothing", ours: nothing, theirs: nothing, want: []string{}},
	{
		name:   "different functions of one file",
		ours:   func(w *workspace) { w.write("a", edited("2", "two")) },
		theirs: func(w *workspace) { w.save("a", edited("6", "six")) },
		want:   []string{"-a=1|2|3|4|5|6|7|", "+a=1|two|3|4|5|six|7|"}, rejected: []string{"a: modified / modified: content"},
		asOurs: []string{"-a=1|2|3|4|5|6|7|", "+a=1|two|3|4|5|6|7|"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|", "+a=1|2|3|4|5|six|7|"},
	},
	{
		name:      "the same line",
		ours:      func(w *workspace) { w.write("a", edited("2", "two")); w.create("n", "n\n") },
		theirs:    func(w *workspace) { w.write("a", edited("2", "zwei")); w.create("m", "m\n") },
		conflicts: []string{"a: modified / modified: content"},
		asOurs:    []string{"-a=1|2|3|4|5|6|7|", "+a=1|two|3|4|5|6|7|", "+m=m|", "+n=n|"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|", "+a=1|zwei|3|4|5|6|7|", "+m=m|", "+n=n|"},
	},
	{
		name: "the same edit", ours: func(w *workspace) { w.write("a", "x") }, theirs: func(w *workspace) { w.save("a", "x") },
		want: []string{"-a=1|2|3|4|5|6|7|", "+a=x"},
	},
	{
		name: "binary", ours: func(w *workspace) { w.write("bin", "x\x00z\n") }, theirs: func(w *workspace) { w.write("bin", "w\x00y\n") },
		conflicts: []string{"bin: modified / modified: content"},
		asOurs:    []string{"-bin=x\x00y|", "+bin=x\x00z|"}, asTheirs: []string{"-bin=x\x00y|", "+bin=w\x00y|"},
	},
	{
		name: "edit and delete", ours: func(w *workspace) { w.write("a", "x") }, theirs: func(w *workspace) { w.rm("a") },
		conflicts: []string{"a: modified / deleted: existence"},
		asOurs:    []string{"-a=1|2|3|4|5|6|7|", "+a=x"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|"},
	},
	{
		name: "delete and edit", ours: func(w *workspace) { w.rm("a") }, theirs: func(w *workspace) { w.write("a", "x") },
		conflicts: []string{"a: deleted / modified: existence"},
		asOurs:    []string{"-a=1|2|3|4|5|6|7|"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|", "+a=x"},
	},
	{
		name: "delete and touch", ours: func(w *workspace) { w.rm("a") }, theirs: func(w *workspace) { w.touch("a", 5) },
		want: []string{"-a=1|2|3|4|5|6|7|"},
	},
	{name: "both delete", ours: func(w *workspace) { w.rm("a") }, theirs: func(w *workspace) { w.rm("a") }, want: []string{"-a=1|2|3|4|5|6|7|"}},
	{
		name: "delete a directory, and a new file in it",
		ours: func(w *workspace) { w.rm("e/h"); w.rmdir("e") }, theirs: func(w *workspace) { w.create("e/n", "n\n") },
		conflicts: []string{"e/n (e): deleted / created: place"},
		asOurs:    []string{"-e/", "-e/h=h|"}, asTheirs: []string{"+e/n=n|"},
	},
	{
		name: "a new file, and delete its directory",
		ours: func(w *workspace) { w.create("e/n", "n\n") }, theirs: func(w *workspace) { w.rm("e/h"); w.rmdir("e") },
		conflicts: []string{"e/n (e): created / deleted: place"},
		asOurs:    []string{"+e/n=n|"}, asTheirs: []string{"-e/", "-e/h=h|"},
	},
	{
		name: "delete a directory, and change a file in it",
		ours: func(w *workspace) { w.rm("e/h"); w.rmdir("e") }, theirs: func(w *workspace) { w.write("e/h", "H\n") },
		conflicts: []string{"e/h: deleted / modified: existence"},
		asOurs:    []string{"-e/", "-e/h=h|"}, asTheirs: []string{"-e/h=h|", "+e/h=H|"},
	},
	{
		name: "rename and edit", ours: func(w *workspace) { w.rename("a", "b") }, theirs: func(w *workspace) { w.write("a", "x") },
		want: []string{"-a=1|2|3|4|5|6|7|", "+b=x"},
	},
	{
		name: "edit and rename", ours: func(w *workspace) { w.write("a", "x") }, theirs: func(w *workspace) { w.rename("a", "e/b") },
		want: []string{"-a=1|2|3|4|5|6|7|", "+e/b=x"},
	},
	{
		name: "rename, and put another file in its place",
		ours: func(w *workspace) { w.rename("a", "b") }, theirs: func(w *workspace) { w.rename("d/f", "a") },
		want: []string{"-a=1|2|3|4|5|6|7|", "-d/f=f|", "+b=f|"},
	},
	{
		name: "rename to different names", ours: func(w *workspace) { w.rename("a", "b") }, theirs: func(w *workspace) { w.rename("a", "c") },
		conflicts: []string{"b: renamed / renamed: name"},
		asOurs:    []string{"-a=1|2|3|4|5|6|7|", "+b=1|2|3|4|5|6|7|"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|", "+c=1|2|3|4|5|6|7|"},
	},
	{
		name: "both rename alike", ours: func(w *workspace) { w.rename("a", "b") }, theirs: func(w *workspace) { w.rename("a", "b") },
		want: []string{"-a=1|2|3|4|5|6|7|", "+b=1|2|3|4|5|6|7|"},
	},
	{
		name: "rename, and the same by copy and delete",
		ours: func(w *workspace) { w.rename("a", "b") }, theirs: func(w *workspace) { w.create("b", lines); w.rm("a") },
		want: []string{"-a=1|2|3|4|5|6|7|", "+b=1|2|3|4|5|6|7|"},
	},
	{
		name: "rename and delete", ours: func(w *workspace) { w.rename("a", "b") }, theirs: func(w *workspace) { w.rm("a") },
		conflicts: []string{"b: renamed / deleted: existence"},
		asOurs:    []string{"-a=1|2|3|4|5|6|7|", "+b=1|2|3|4|5|6|7|"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|"},
	},
	{
		name: "different files renamed to one name", ours: func(w *workspace) { w.rename("d/f", "n") }, theirs: func(w *workspace) { w.rename("d/g", "n") },
		conflicts: []string{"n (d/g): renamed / renamed: name"},
		asOurs:    []string{"-d/f=f|", "+n=f|"}, asTheirs: []string{"-d/g=g|", "+n=g|"},
	},
	{
		name: "create and create", ours: func(w *workspace) { w.create("n", "1\n") }, theirs: func(w *workspace) { w.create("n", "2\n") },
		conflicts: []string{"n: created / created: content"}, asOurs: []string{"+n=1|"}, asTheirs: []string{"+n=2|"},
	},
	{
		name:   "create alike trees",
		ours:   func(w *workspace) { w.mkdir("n"); w.create("n/a", "1\n"); w.create("n/o", "o\n") },
		theirs: func(w *workspace) { w.mkdir("n"); w.create("n/a", "1\n"); w.symlink("t", "n/t") },
		want:   []string{"+n/", "+n/a=1|", "+n/o=o|", "+n/t->t"},
	},
	{
		name: "a directory renamed, and a file created in it",
		ours: func(w *workspace) { w.rename("d", "D") }, theirs: func(w *workspace) { w.create("d/n", "n\n"); w.write("d/sub/s", "S\n") },
		want: []string{"-d/", "-d/f=f|", "-d/g=g|", "-d/sub/", "-d/sub/s=s|", "+D/", "+D/f=f|", "+D/g=g|", "+D/n=n|", "+D/sub/", "+D/sub/s=S|"},
	},
	{
		name: "a file created in a directory, that theirs renamed",
		ours: func(w *workspace) { w.create("d/n", "n\n"); w.write("d/sub/s", "S\n"); w.rm("d/f") }, theirs: func(w *workspace) { w.rename("d", "e/D") },
		want: []string{"-d/", "-d/f=f|", "-d/g=g|", "-d/sub/", "-d/sub/s=s|", "+e/D/", "+e/D/g=g|", "+e/D/n=n|", "+e/D/sub/", "+e/D/sub/s=S|"},
	},
	{
		name: "a directory renamed and deleted",
		ours: func(w *workspace) { w.rename("e", "E") }, theirs: func(w *workspace) { w.rm("e/h"); w.rmdir("e") },
		conflicts: []string{"E: renamed / deleted: existence"},
		asOurs:    []string{"-e/", "-e/h=h|", "+E/", "+E/h=h|"}, asTheirs: []string{"-e/", "-e/h=h|"},
	},
	{
		name: "a directory and a file at one path", ours: func(w *workspace) { w.mkdir("n"); w.create("n/x", "") }, theirs: func(w *workspace) { w.create("n", "n\n") },
		conflicts: []string{"n (n): created / created: name"}, asOurs: []string{"+n/", "+n/x="}, asTheirs: []string{"+n=n|"},
	},
	{
		name: "a file becomes a directory", ours: nothing, theirs: func(w *workspace) { w.rm("a"); w.mkdir("a"); w.create("a/n", "n\n") },
		want: []string{"-a=1|2|3|4|5|6|7|", "+a/", "+a/n=n|"},
	},
	{
		name: "a directory becomes a file", ours: nothing, theirs: func(w *workspace) { w.rm("e/h"); w.rmdir("e"); w.symlink("a", "e") },
		want: []string{"-e/", "-e/h=h|", "+e->a"},
	},
	{
		name: "a file becomes a directory, and is edited", ours: func(w *workspace) { w.write("a", "x") }, theirs: func(w *workspace) { w.rm("a"); w.mkdir("a"); w.create("a/n", "n\n") },
		conflicts: []string{"a: modified / deleted: existence"},
		asOurs:    []string{"-a=1|2|3|4|5|6|7|", "+a=x"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|", "+a/", "+a/n=n|"},
	},
	{
		name: "symlinks to different places", ours: func(w *workspace) { w.rm("l"); w.symlink("b", "l") }, theirs: func(w *workspace) { w.rm("l"); w.symlink("c", "l") },
		conflicts: []string{"l: modified / modified: content"}, asOurs: []string{"-l->a", "+l->b"}, asTheirs: []string{"-l->a", "+l->c"},
	},
	{name: "a symlink changed", ours: nothing, theirs: func(w *workspace) { w.rm("l"); w.symlink("b", "l") }, want: []string{"-l->a", "+l->b"}},
	{
		name: "chmod and edit", ours: func(w *workspace) { w.chmod("a", 0o700) }, theirs: func(w *workspace) { w.write("a", "x") },
		want: []string{"-a=1|2|3|4|5|6|7|", "+a=x 0700"},
	},
	{
		name: "edit and chmod", ours: func(w *workspace) { w.save("a", "x") }, theirs: func(w *workspace) { w.chmod("a", 0o4711) },
		want: []string{"-a=1|2|3|4|5|6|7|", "+a=x 04711"},
	},
	{
		name: "different modes", ours: func(w *workspace) { w.chmod("a", 0o700) }, theirs: func(w *workspace) { w.chmod("a", 0o600); w.write("a", "x") },
		conflicts: []string{"a: mode changed / modified,mode changed: mode"},
		asOurs:    []string{"-a=1|2|3|4|5|6|7|", "+a=1|2|3|4|5|6|7| 0700"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|", "+a=x 0600"},
	},
	{
		name: "user and group", ours: func(w *workspace) { w.chown("a", 7, 0) }, theirs: func(w *workspace) { w.chown("a", 0, 8) },
		want: []string{"-a=1|2|3|4|5|6|7|", "+a=1|2|3|4|5|6|7| 7:8"},
	},
	{
		name: "different users", ours: func(w *workspace) { w.chown("a", 7, 0) }, theirs: func(w *workspace) { w.chown("a", 8, 0) },
		conflicts: []string{"a: owner changed / owner changed: owner"},
		asOurs:    []string{"-a=1|2|3|4|5|6|7|", "+a=1|2|3|4|5|6|7| 7:0"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|", "+a=1|2|3|4|5|6|7| 8:0"},
	},
	{
		name: "different xattrs", ours: func(w *workspace) { w.removeXattr("x", "user.a"); w.setXattr("x", "user.c", "o") },
		theirs: func(w *workspace) { w.setXattr("x", "user.b", "t") },
		want:   []string{"-x=x| user.a=1 user.b=1", "+x=x| user.b=t user.c=o"},
	},
	{
		name: "one xattr", ours: func(w *workspace) { w.removeXattr("x", "user.a") }, theirs: func(w *workspace) { w.setXattr("x", "user.a", "t"); w.setXattr("x", "user.b", "t") },
		conflicts: []string{"x: xattr changed / xattr changed: xattr user.a"},
		asOurs:    []string{"-x=x| user.a=1 user.b=1", "+x=x| user.b=1"}, asTheirs: []string{"-x=x| user.a=1 user.b=1", "+x=x| user.a=t user.b=t"},
	},
	{
		name: "directories' attributes", ours: func(w *workspace) { w.chmod("d", 0o700); w.create("d/n", "n\n") }, theirs: func(w *workspace) { w.setXattr("d", "user.t", "t"); w.chmod("e", 0o500) },
		want: []string{"-d/", "-e/", "+d/ 0700 user.t=t", "+d/n=n|", "+e/ 0500"},
	},
	{name: "the root's mode", ours: nothing, theirs: func(w *workspace) { w.chmod("e", 0o711) }, want: []string{"-e/", "+e/ 0711"}},
	{
		name: "swapped files", ours: func(w *workspace) { w.chmod("d/f", 0o600) }, theirs: func(w *workspace) { w.swap("d/f", "d/g") },
		want: []string{"-d/f=f|", "-d/g=g|", "+d/f=g| 0600", "+d/g=f|"},
	},
	{
		name: "swapped directories", ours: func(w *workspace) { w.create("d/n", "n\n") }, theirs: func(w *workspace) { w.swap("d", "e") },
		want: []string{"-d/f=f|", "-d/g=g|", "-d/sub/", "-d/sub/s=s|", "-e/h=h|", "+d/h=h|", "+e/f=f|", "+e/g=g|", "+e/n=n|", "+e/sub/", "+e/sub/s=s|"},
	},
	{
		name: "a directory takes the place of another", ours: func(w *workspace) { w.write("d/f", "F\n") }, theirs: func(w *workspace) { w.rename("d", "old"); w.rename("e", "d"); w.create("d/f", "new\n") },
		want: []string{"-d/f=f|", "-d/g=g|", "-d/sub/", "-d/sub/s=s|", "-e/", "-e/h=h|", "+d/f=new|", "+d/h=h|", "+old/", "+old/f=F|", "+old/g=g|", "+old/sub/", "+old/sub/s=s|"},
	},
	{
		name: "a directory swapped with one in it", ours: nothing, theirs: func(w *workspace) { w.rename("d/sub", "t"); w.rename("d", "t/sub"); w.rename("t", "d") },
		want: []string{"-d/f=f|", "-d/g=g|", "-d/sub/s=s|", "+d/s=s|", "+d/sub/f=f|", "+d/sub/g=g|"},
	},
	{
		name: "directories moved into each other", ours: func(w *workspace) { w.rename("d", "e/d") }, theirs: func(w *workspace) { w.rename("e", "d/e") },
		conflicts: []string{"e/d (e): renamed / renamed: loop"},
		asOurs:    []string{"-d/", "-d/f=f|", "-d/g=g|", "-d/sub/", "-d/sub/s=s|", "+e/d/", "+e/d/f=f|", "+e/d/g=g|", "+e/d/sub/", "+e/d/sub/s=s|"},
		asTheirs:  []string{"-e/", "-e/h=h|", "+d/e/", "+d/e/h=h|"},
	},
	{
		name: "special files", ours: nothing, theirs: func(w *workspace) { w.mknod("p", unix.S_IFIFO|0o600, 0); w.mknod("s", unix.S_IFSOCK|0o644, 0) },
		want: []string{"+p fifo 0600", "+s socket"},
	},
	{
		name: "names that are not UTF-8", ours: func(w *workspace) { w.rename("a", "\xff") }, theirs: func(w *workspace) { w.write("a", "x"); w.create("\xfe\n", "n") },
		want: []string{"-a=1|2|3|4|5|6|7|", "+\xff=x", "+\xfe\n=n"},
	},
	{
		name: "a file with two names edited", ours: nothing, theirs: func(w *workspace) { w.write("h2", "x") },
		want: []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=x", "+h2=x (h1)"},
	},
	{
		name: "a file with two names edited under each", ours: func(w *workspace) { w.write("h1", edited("2", "two")) }, theirs: func(w *workspace) { w.write("h2", edited("6", "six")) },
		want:     []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=1|two|3|4|5|six|7|", "+h2=1|two|3|4|5|six|7| (h1)"},
		rejected: []string{"h1: modified / modified: content", "h2: modified / modified: content"},
		asOurs:   []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=1|two|3|4|5|6|7|", "+h2=1|two|3|4|5|6|7| (h1)"},
		asTheirs: []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=1|2|3|4|5|six|7|", "+h2=1|2|3|4|5|six|7| (h1)"},
	},
	{
		name: "one of two names replaced", ours: nothing, theirs: func(w *workspace) { w.save("h1", "x") },
		want: []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=x", "+h2=1|2|3|4|5|6|7|"},
	},
	{
		name: "one of two names replaced, then the other edited", ours: nothing, theirs: func(w *workspace) { w.save("h1", "x"); w.write("h2", "y") },
		want: []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=x", "+h2=y"},
	},
	{
		name: "one of two names replaced, the other edited", ours: func(w *workspace) { w.save("h1", edited("2", "two")) }, theirs: func(w *workspace) { w.write("h2", edited("6", "six")) },
		want:     []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=1|two|3|4|5|six|7|", "+h2=1|2|3|4|5|six|7|"},
		rejected: []string{"h1: modified / modified: content"},
		asOurs:   []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=1|two|3|4|5|6|7|", "+h2=1|2|3|4|5|six|7|"},
		asTheirs: []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=1|2|3|4|5|six|7|", "+h2=1|2|3|4|5|six|7|"},
	},
	{
		name: "edited, and one name let go", ours: func(w *workspace) { w.write("h1", "x") }, theirs: func(w *workspace) { w.save("h2", lines); w.chmod("h2", 0o600) },
		want: []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=x", "+h2=x 0600"},
	},
	{
		name: "a new link to a file that is edited", ours: func(w *workspace) { w.write("a", "x") }, theirs: func(w *workspace) { w.link("a", "n") },
		want: []string{"-a=1|2|3|4|5|6|7|", "+a=x", "+n=x (a)"},
	},
	{
		name: "a new link to a file that is edited through it, and another mode", ours: func(w *workspace) { w.link("a", "n"); w.write("n", "x") },
		theirs: func(w *workspace) { w.chmod("a", 0o600) },
		want:   []string{"-a=1|2|3|4|5|6|7|", "+a=x 0600", "+n=x (a) 0600"},
	},
	{
		name: "another mode, and a new link to a file that is edited through it", ours: func(w *workspace) { w.chmod("a", 0o600) },
		theirs: func(w *workspace) { w.link("a", "n"); w.write("n", "x") },
		want:   []string{"-a=1|2|3|4|5|6|7|", "+a=x 0600", "+n=x (a) 0600"},
	},
	{
		name: "new links", ours: nothing, theirs: func(w *workspace) {
			w.create("n", "n\n")
			w.link("n", "e/m")
			w.link("d/f", "f2")
			w.write("f2", "F\n")
		},
		want: []string{"-d/f=f|", "+d/f=F|", "+e/m=n|", "+f2=F| (d/f)", "+n=n| (e/m)"},
	},
	{
		name: "a name taken over by a link", ours: nothing, theirs: func(w *workspace) { w.rm("d/g"); w.link("d/f", "d/g") },
		want: []string{"-d/g=g|", "+d/g=f| (d/f)"},
	},
	{
		name: "a name taken over by a link to a later one", ours: nothing, theirs: func(w *workspace) { w.rm("d/f"); w.link("d/g", "d/f") },
		want: []string{"-d/f=f|", "-d/g=g|", "+d/f=g|", "+d/g=g| (d/f)"},
	},
	{
		name: "a new file where a directory was that was swapped", ours: nothing, theirs: func(w *workspace) { w.create("d/h", "n\n"); w.swap("d", "e"); w.rename("d/h", "old") },
		want: []string{"-d/f=f|", "-d/g=g|", "-d/sub/", "-d/sub/s=s|", "-e/h=h|", "+e/f=f|", "+e/g=g|", "+e/h=n|", "+e/sub/", "+e/sub/s=s|", "+old=h|"},
	},
	{
		name: "one of two names deleted, and edited", ours: func(w *workspace) { w.rm("h1") }, theirs: func(w *workspace) { w.write("h2", "x") },
		conflicts: []string{"h1: deleted / modified: existence"},
		asOurs:    []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h2=x"},
		asTheirs:  []string{"-h1=1|2|3|4|5|6|7|", "-h2=1|2|3|4|5|6|7| (h1)", "+h1=x", "+h2=x (h1)"},
	},
	{
		name: "CRLF", ours: func(w *workspace) { w.write("a", strings.ReplaceAll(lines, "\n", "\r\n")) }, theirs: func(w *workspace) { w.write("a", edited("2", "two")) },
		conflicts: []string{"a: modified / modified: content"},
		asOurs:    []string{"-a=1|2|3|4|5|6|7|", "+a=1\r|2\r|3\r|4\r|5\r|6\r|7\r|"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|", "+a=1|two|3|4|5|6|7|"},
	},
	{
		name: "no newline at the end", ours: func(w *workspace) { w.write("a", strings.TrimSuffix(lines, "\n")) }, theirs: func(w *workspace) { w.write("a", edited("2", "\xfftwo")) },
		want: []string{"-a=1|2|3|4|5|6|7|", "+a=1|\xfftwo|3|4|5|6|7"}, rejected: []string{"a: modified / modified: content"},
		asOurs: []string{"-a=1|2|3|4|5|6|7|", "+a=1|2|3|4|5|6|7"}, asTheirs: []string{"-a=1|2|3|4|5|6|7|", "+a=1|\xfftwo|3|4|5|6|7|"},
	},
}

func TestMerge(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

func (c mergeCase) run(t *testing.T) {
	x := newTrees(t, fill)
	c.ours(x.ours)
	c.theirs(x.theirs)
	for _, policy := range []merge.Policy{merge.Text, merge.Reject, merge.Ours, merge.Theirs} {
		want, conflicts, resolved := c.want, c.conflicts, merge.Policy("")
		if len(c.rejected) > 0 && policy != merge.Text {
			conflicts = c.rejected
		}
		if len(conflicts) > 0 && policy == merge.Ours {
			want, resolved = c.asOurs, policy
		}
		if len(conflicts) > 0 && policy == merge.Theirs {
			want, resolved = c.asTheirs, policy
		}
		t.Run(string(policy), func(t *testing.T) { x.check(t, policy, want, conflicts, resolved) })
	}
}

// check plans a merge, carries it out, looks at what it made, and takes it back.
func (x *trees) check(t *testing.T, policy merge.Policy, want, conflicts []string, resolved merge.Policy) {
	p := x.plan(t, policy)
	got := conflictLines(t, p, resolved)
	if resolved != "" { // what else went with that is listed, too
		got = slices.DeleteFunc(got, func(l string) bool { return !slices.Contains(conflicts, l) })
	}
	if !slices.Equal(got, conflicts) {
		t.Errorf("conflicts %q, want %q", got, conflicts)
	}
	if len(conflicts) > 0 && resolved == "" {
		if len(p.Ops) > 0 || merge.Apply(t.Context(), p, x.ours.volume(), x.theirs.volume()) == nil {
			t.Error("the plan has something to do")
		}
		return
	}
	before, undo := x.ours.state(), x.ours.snapshot()
	x.apply(t, p)
	changes := difference(listing(x.base.state(), x.base.dir), listing(x.ours.state(), x.ours.dir))
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(changes, want) {
		t.Errorf("got  %q\nwant %q\n%s", changes, want, text(p))
	}
	x.ours.rollback(undo)
	for _, d := range treestate.Diff(before, x.ours.state()) {
		t.Error("rolled back:", d)
	}
}

func conflictLines(t *testing.T, p *merge.Plan, resolved merge.Policy) (list []string) {
	kinds := func(ks []merge.Kind) string {
		return strings.Trim(strings.ReplaceAll(fmt.Sprintf("%q", ks), `" "`, ","), `[]"`)
	}
	for _, c := range p.Conflicts {
		s := c.Path
		if c.Other != "" {
			s += " (" + c.Other + ")"
		}
		list = append(list, fmt.Sprintf("%s: %s / %s: %s", s, kinds(c.Ours), kinds(c.Theirs), strings.Join(c.What, ",")))
		if c.Resolved != resolved {
			t.Errorf("%s is resolved %q", c.Path, c.Resolved)
		}
		if c.OursAgent != "alice" || c.TheirAgent != "bob" {
			t.Errorf("%s does not name the agents", c.Path)
		}
	}
	return list
}

// difference gives the lines that only one of two listings has, sorted.
func difference(a, b string) []string {
	list := []string{}
	x, y := splitListing(a), splitListing(b)
	for _, l := range x {
		if !slices.Contains(y, l) {
			list = append(list, "-"+l)
		}
	}
	for _, l := range y {
		if !slices.Contains(x, l) {
			list = append(list, "+"+l)
		}
	}
	slices.Sort(list)
	return list
}

func splitListing(s string) []string { return strings.Split(strings.TrimSuffix(s, "\x01"), "\x01") }
