package ops

import (
	"cmp"
	"strings"

	"golang.org/x/sys/unix"
)

// Chooser makes the random choices of a Generator. Intn gives a number from 0 to n-1; small ones should be what a simpler
// operation needs, so that a shrinking Chooser shrinks operations.
type Chooser interface {
	Intn(label string, n int) int
}

// View is what exists, which Next chooses from. Paths are sorted.
type View struct {
	Dirs        []string // without the top
	Files       []string // regular
	Others      []string
	Handles     []int // open
	Mapped      []int // those of Handles that have a mapping
	Checkpoints []int // active
	CanUndo     bool
}

// Generator makes operations that mostly make sense.
type Generator struct {
	Root          bool // also what only root may do
	Checkpoints   bool // also operations on checkpoints
	Explain       bool // also diffs from checkpoints to now
	Simple        bool // of the operations on the tree, only those that are one step for the tree, and no handles
	NoHandles     bool // nothing stays open from one operation to the next
	NoDiscard     bool // no rollback without an undo checkpoint
	NoStaleWrites bool // no writes through handles from before a rollback
	NoXattrs      bool // no extended attributes
	NoShift       bool // no fallocate that shifts what follows: the kernel's FUSE has neither collapse nor insert
	NoMoves       bool // nothing old gets another name or place
	FewLarge      bool // most of what is long or far into a file becomes a tenth of that
	Entries       int  // the size of a tree beyond which it rather removes than creates; 0 means MaxEntries
	nextHandle    int
	nextTmp       int
}

// MaxEntries is Generator.Entries where that is 0.
const MaxEntries = 60

// MaxHandles is how many handles a Generator opens at a time.
const MaxHandles = 6

// weights says how often an operation is chosen. An operation that the view has nothing for becomes another one.
var weights = []struct {
	kind Kind
	n    int
}{
	{Create, 10}, {Rewrite, 8}, {Write, 10}, {Append, 4}, {Truncate, 6}, {Replace, 6}, {Unlink, 8}, {Mkdir, 8},
	{Rmdir, 3}, {RemoveAll, 3}, {Rename, 16}, {Link, 7}, {Symlink, 3}, {Mknod, 2}, {Tmpfile, 2}, {Chmod, 5}, {Chown, 3},
	{Utimes, 5}, {SetXattr, 5}, {DelXattr, 2}, {Fallocate, 4}, {CopyRange, 2},
	{HOpen, 6}, {HWrite, 8}, {HAppend, 3}, {HTruncate, 3}, {HFallocate, 2}, {HMap, 3}, {HMapWrite, 4}, {HFsync, 1}, {HClose, 3},
	{Snapshot, 9}, {Rollback, 7}, {Undo, 3}, {Drop, 2}, {Promote, 1}, {Restart, 1}, {GC, 1}, {Compare, 6}, {StaleWrites, 1}, {Explain, 1},
}

// composite are the operations that a crash can leave half done.
var composite = map[Kind]bool{
	Create: true, Write: true, Append: true, Replace: true, RemoveAll: true, Tmpfile: true, Fallocate: true, CopyRange: true,
}

// Next makes an operation.
func (g *Generator) Next(c Chooser, v View) Op {
	for range 20 {
		kind := g.kind(c, v)
		if o, ok := g.make(c, v, kind); ok {
			if !g.Root {
				o.leaveToOwner()
			}
			return o
		}
	}
	return Op{Kind: Mkdir, Path: Bytes(g.fresh(c, v)), Mode: 0o755}
}

// leaveToOwner changes modes and ACLs so that the owner is not shut out: where they are not root, neither they nor what compares the
// trees could go on there.
func (o *Op) leaveToOwner() {
	switch o.Kind {
	case Create, Mkdir, Chmod:
		o.Mode |= 0o700
	case SetXattr:
		if strings.HasPrefix(o.Name, "system.") {
			o.Value = o.Value[:aclOwnerPerm] + "\x07" + o.Value[aclOwnerPerm+1:]
		}
	}
}

func (g *Generator) kind(c Chooser, v View) Kind {
	if len(v.Dirs)+len(v.Files)+len(v.Others) > cmp.Or(g.Entries, MaxEntries) && c.Intn("shrink", 2) == 0 {
		return RemoveAll
	}
	total := 0
	for _, w := range weights {
		if g.allows(w.kind) {
			total += w.n
		}
	}
	k := c.Intn("kind", total)
	for _, w := range weights {
		if !g.allows(w.kind) {
			continue
		}
		if k -= w.n; k < 0 {
			return w.kind
		}
	}
	return Compare
}

func (g *Generator) allows(k Kind) bool {
	switch k {
	case Snapshot, Rollback, Undo, Drop, Promote, Restart, GC, Compare:
		return g.Checkpoints
	case Explain:
		return g.Checkpoints && g.Explain
	case StaleWrites:
		return g.Checkpoints && !g.Simple && !g.NoHandles && !g.NoStaleWrites
	case Chown:
		return g.Root
	case SetXattr, DelXattr:
		return !g.NoXattrs
	case Rename, Link:
		return !g.NoMoves
	}
	return !g.Simple && !g.NoHandles || !strings.HasPrefix(string(k), "h")
}

// make makes an operation of the given kind, if there is something to do it to.
func (g *Generator) make(c Chooser, v View, k Kind) (Op, bool) {
	o := Op{Kind: k}
	switch k {
	case Create, Rewrite, Write, Append, Truncate, Replace, Tmpfile, CopyRange, Fallocate:
		return g.content(c, v, o)
	case HOpen, HWrite, HAppend, HTruncate, HFallocate, HMap, HMapWrite, HFsync, HClose:
		return g.handle(c, v, o)
	case Snapshot, Rollback, Undo, Drop, Promote, Restart, GC, Compare, StaleWrites, Explain:
		return g.checkpoint(c, v, o)
	case Chmod, Chown, Utimes, SetXattr, DelXattr:
		return g.attribute(c, v, o)
	}
	return g.names(c, v, o)
}

// content makes operations that write.
func (g *Generator) content(c Chooser, v View, o Op) (Op, bool) {
	file := g.file(c, v)
	o.Path = Bytes(file)
	switch o.Kind {
	case Create:
		o.Path, o.Mode = Bytes(g.fresh(c, v)), pick(c, "mode", modes)
		g.data(c, &o)
	case Rewrite:
		o.Mode = 0o644
		if c.Intn("new", 4) == 3 {
			o.Path = Bytes(g.fresh(c, v))
			return o, g.data(c, &o)
		}
		g.data(c, &o)
	case Replace:
		g.nextTmp++
		dir, _ := split(file)
		o.To, o.Mode = Bytes(under(dir, ".tmp")), 0o600
		g.data(c, &o)
	case Tmpfile:
		o.Path, o.To, o.Mode = Bytes(g.dir(c, v)), Bytes(g.fresh(c, v)), 0o640
		if o.Path == "" {
			o.Path = "."
		}
		return o, g.data(c, &o)
	case CopyRange:
		o.To = Bytes(g.file(c, v))
		o.Off, o.Len = g.number(c, "off", offsets), 1+g.number(c, "len", lengths)
		return o, file != "" && o.To != o.Path
	case Truncate:
		o.Len = g.number(c, "size", lengths)
	case Fallocate:
		g.allocate(c, &o)
	default:
		g.data(c, &o)
		o.Off = g.number(c, "off", offsets)
	}
	return o, o.Path != ""
}

// number chooses one of the bytes or offsets.
func (g *Generator) number(c Chooser, label string, from []int64) int64 {
	n := pick(c, label, from)
	if g.FewLarge && n > 10*4096 && c.Intn("large", 8) > 0 {
		n /= 10
	}
	return n
}

// data chooses how much to write; it gives true, for callers in a hurry.
func (g *Generator) data(c Chooser, o *Op) bool {
	o.Len, o.Seed = g.number(c, "len", lengths), uint64(c.Intn("seed", 1<<16))
	if g.Simple && composite[o.Kind] {
		o.Len = min(o.Len, 4096)
	}
	return true
}

// allocate chooses one of the things that fallocate does, aligned for those that want it.
func (g *Generator) allocate(c Chooser, o *Op) {
	const keep = unix.FALLOC_FL_KEEP_SIZE
	modes := []uint32{unix.FALLOC_FL_PUNCH_HOLE | keep, 0, keep, unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_ZERO_RANGE | keep}
	if !g.NoShift {
		modes = append(modes, unix.FALLOC_FL_COLLAPSE_RANGE, unix.FALLOC_FL_INSERT_RANGE)
	}
	o.Flags = pick(c, "fallocate", modes)
	o.Off, o.Len = g.number(c, "off", offsets)&^4095, 1+g.number(c, "len", lengths)|4095
}

// handle makes operations on open files.
func (g *Generator) handle(c Chooser, v View, o Op) (Op, bool) {
	if o.Kind == HOpen {
		g.nextHandle++
		o.Handle, o.Path = g.nextHandle, Bytes(g.file(c, v))
		o.Flags = unix.O_RDWR
		return o, o.Path != "" && len(v.Handles) < MaxHandles
	}
	from := v.Handles
	if o.Kind == HMapWrite {
		from = v.Mapped
	}
	if len(from) == 0 {
		return o, false
	}
	o.Handle = from[c.Intn("handle", len(from))]
	switch o.Kind {
	case HTruncate:
		o.Len = g.number(c, "size", lengths)
	case HFallocate:
		g.allocate(c, &o)
	case HMap:
		o.Len = 16384
	case HMapWrite:
		o.Off, o.Len, o.Seed = pick(c, "off", offsets)%16384, 1+int64(c.Intn("len", 5000)), uint64(c.Intn("seed", 1<<16))
	case HWrite, HAppend:
		o.Off = g.number(c, "off", offsets)
		g.data(c, &o)
	}
	return o, true
}

// checkpoint makes operations on checkpoints.
func (g *Generator) checkpoint(c Chooser, v View, o Op) (Op, bool) {
	switch o.Kind {
	case Undo:
		return o, v.CanUndo
	case Rollback, Drop, Promote, StaleWrites, Explain:
		if len(v.Checkpoints) == 0 {
			return o, false
		}
		// Small numbers mean the newest.
		o.N = v.Checkpoints[len(v.Checkpoints)-1-c.Intn("checkpoint", len(v.Checkpoints))]
	}
	if o.Kind == Rollback && !g.NoDiscard && c.Intn("discard", 6) == 5 {
		o.Flags = 1
	}
	if o.Kind == StaleWrites {
		o.Flags, o.Seed = uint32(c.Intn("then", 2)), uint64(c.Intn("seed", 1<<16))
		return o, len(v.Handles) > 0
	}
	return o, true
}

// attribute makes operations on what is not content.
func (g *Generator) attribute(c Chooser, v View, o Op) (Op, bool) {
	o.Path = Bytes(g.any(c, v))
	if o.Path == "" || c.Intn("top", 16) == 15 {
		o.Path = "."
	}
	switch o.Kind {
	case Chmod:
		o.Mode = pick(c, "mode", modes)
	case Chown:
		o.UID, o.GID = c.Intn("uid", 3)*1000, c.Intn("gid", 3)*1000
	case Utimes:
		o.Time = ExplicitTimes + int64(c.Intn("time", 1<<40))
	case SetXattr:
		o.Name, o.Value = g.xattrName(c), Bytes(Data(uint64(c.Intn("seed", 1000)), pick(c, "xattr len", []int64{3, 0, 100, 1000})))
		if strings.HasPrefix(o.Name, "system.") {
			o.Value = pick(c, "acl", acls)
		}
	case DelXattr:
		o.Name = g.xattrName(c)
	}
	return o, true
}

func (g *Generator) xattrName(c Chooser) string {
	names := []string{"user.a", "user.b", "system.posix_acl_access", "system.posix_acl_default"}
	if g.Root {
		names = append(names, "trusted.t")
	}
	return pick(c, "xattr", names)
}

// names makes operations on names.
func (g *Generator) names(c Chooser, v View, o Op) (Op, bool) {
	switch o.Kind {
	case Mkdir:
		o.Path, o.Mode = Bytes(g.fresh(c, v)), pick(c, "mode", []uint32{0o755, 0o700, 0o2775, 0o1777, 0o555})
	case Symlink:
		o.Path, o.Value = Bytes(g.fresh(c, v)), pick(c, "target", []Bytes{"a", "../b", "/nowhere", "\xfe"})
	case Mknod:
		o.Path, o.Mode = Bytes(g.fresh(c, v)), pick(c, "type", []uint32{unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFREG})|0o644
		if g.Root && c.Intn("device", 3) == 2 {
			o.Mode, o.Len = unix.S_IFCHR|0o600, int64(unix.Mkdev(1, 3))
		}
	case Rmdir:
		o.Path = Bytes(g.dir(c, v))
	case RemoveAll:
		o.Path = Bytes(g.any(c, v))
	case Unlink:
		o.Path = Bytes(g.nonDir(c, v))
	case Link:
		o.Path, o.To = Bytes(g.nonDir(c, v)), Bytes(g.fresh(c, v))
	case Rename:
		o.Path, o.To = Bytes(g.any(c, v)), Bytes(g.fresh(c, v))
		if c.Intn("onto", 2) == 1 {
			o.To = Bytes(g.any(c, v))
		}
		o.Flags = pick(c, "flags", []uint32{0, 0, 0, unix.RENAME_EXCHANGE, unix.RENAME_NOREPLACE})
		return o, o.Path != "" && o.To != "" && o.Path != "." && o.To != "."
	}
	return o, o.Path != "" && o.Path != "."
}
