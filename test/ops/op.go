// Package ops is the language of the differential and the crash tests: operations on a directory tree as plain values, which
// can be made at random, executed on anything that is an FS, written to a log and read back, and left out one by one to find
// the few that matter.
package ops

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Kind says what an operation does.
type Kind string

// The operations on the tree. Those marked * are made of several calls.
const (
	Create     Kind = "create"      // * Path with Mode must not exist; Len bytes from Seed
	Rewrite    Kind = "rewrite"     // * O_CREAT|O_TRUNC on Path, then Len bytes from Seed
	Write      Kind = "write"       // * Len bytes at Off of an existing file
	Append     Kind = "append"      // * Len bytes at the end
	Truncate   Kind = "truncate"    // Path to Len bytes
	Replace    Kind = "replace"     // * write To, rename it to Path, as editors save
	Unlink     Kind = "unlink"      //
	Mkdir      Kind = "mkdir"       //
	Rmdir      Kind = "rmdir"       //
	RemoveAll  Kind = "rm-rf"       // *
	Rename     Kind = "rename"      // Path to To with Flags
	Link       Kind = "link"        // Path gets the further name To
	Symlink    Kind = "symlink"     // Path leads to Value
	Mknod      Kind = "mknod"       // Mode has the type; Len is the device
	Tmpfile    Kind = "tmpfile"     // * an O_TMPFILE in the directory Path, Len bytes, linked as To
	Chmod      Kind = "chmod"       //
	Chown      Kind = "chown"       //
	Utimes     Kind = "utimes"      // mtime and atime become Time
	SetXattr   Kind = "setxattr"    // Name becomes Value
	DelXattr   Kind = "removexattr" // Name
	Fallocate  Kind = "fallocate"   // * Flags, Off, Len
	CopyRange  Kind = "copyrange"   // * Len bytes from the start of Path to Off of To
	HOpen      Kind = "hopen"       // Path with Flags; it is known as Handle from then on
	HWrite     Kind = "hwrite"      // through Handle
	HAppend    Kind = "happend"     // through Handle, wherever its end is
	HTruncate  Kind = "htruncate"   // through Handle
	HFallocate Kind = "hfallocate"  // through Handle
	HMap       Kind = "hmap"        // a shared mapping of the first Len bytes of Handle
	HMapWrite  Kind = "hmapwrite"   // through the mapping of Handle
	HFsync     Kind = "hfsync"      //
	HClose     Kind = "hclose"      //
)

// The operations on checkpoints. Checkpoints are named by their number: the first that a run makes is 1.
const (
	Snapshot Kind = "snapshot"
	Rollback Kind = "rollback" // to N; with Discard if Flags is not 0
	Undo     Kind = "undo"
	Drop     Kind = "drop"    // N
	Promote  Kind = "promote" // N
	Restart  Kind = "restart"
	GC       Kind = "gc"
	Compare  Kind = "compare" // both trees, now
	Explain  Kind = "explain" // what changed from N to now
	// Variant comes first in a log: Flags says which of the ways to make the subject was used.
	Variant Kind = "variant"
	// StaleWrites is a rollback to N over which handles stay open, then writes through all of them, which may hit what
	// is live but no checkpoint, and then an undo (Flags 0) or a second rollback to N.
	StaleWrites Kind = "stale-writes"
)

// The operations on branches. All others are about the branch that Op.Branch names, too.
const (
	Fork       Kind = "fork"        // the branch Name, of checkpoint N
	Merge      Kind = "merge"       // the branch into its parent; Name is the policy, Flags are of MergeDry and MergeAlone
	DropBranch Kind = "drop-branch" //
	Look       Kind = "look"        // at what was at checkpoint N, and where Handle is another one at the diff from there to N
)

// Flags of Merge.
const (
	MergeDry   = 1 << iota // only say what would be done
	MergeAlone             // drop the other branches of the parent
)

// What N means in a rollback of a branch, besides a checkpoint.
const (
	ToForkPoint = -1
	ToDefault   = -2 // where a rollback goes that names nothing
)

// Op is one operation. Its fields mean what its Kind says.
type Op struct {
	Kind   Kind   `json:"kind"`
	Path   Bytes  `json:"path,omitempty"` // relative to the top of the tree, as are all paths
	To     Bytes  `json:"to,omitempty"`
	Name   string `json:"name,omitempty"`
	Value  Bytes  `json:"value,omitempty"`
	Off    int64  `json:"off,omitempty"` // bytes
	Len    int64  `json:"len,omitempty"` // bytes
	Seed   uint64 `json:"seed,omitempty"`
	Mode   uint32 `json:"mode,omitempty"`
	Flags  uint32 `json:"flags,omitempty"`
	UID    int    `json:"uid,omitempty"`
	GID    int    `json:"gid,omitempty"`
	Time   int64  `json:"time,omitempty"` // ns since 1970
	Handle int    `json:"handle,omitempty"`
	N      int    `json:"n,omitempty"`
	Branch string `json:"branch,omitempty"` // "" is main
}

// Bytes is a string of any bytes that survives JSON.
type Bytes string

// MarshalText quotes what isn't printable ASCII.
func (b Bytes) MarshalText() ([]byte, error) {
	q := strconv.QuoteToASCII(string(b))
	return []byte(q[1 : len(q)-1]), nil
}

// UnmarshalText undoes MarshalText.
func (b *Bytes) UnmarshalText(text []byte) error {
	s, err := strconv.Unquote(`"` + string(text) + `"`)
	*b = Bytes(s)
	return err
}

// String gives the operation as a line of a log.
func (o Op) String() string {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Sprintf("%s: %v", o.Kind, err)
	}
	return string(data)
}

// OnHandle reports whether the operation uses a handle that was opened before.
func (o Op) OnHandle() bool { return o.Handle != 0 && o.Kind != HOpen }

// WriteLog writes one line for each operation.
func WriteLog(w io.Writer, list []Op) error {
	buf := bufio.NewWriter(w)
	for _, o := range list {
		if _, err := fmt.Fprintln(buf, o); err != nil {
			return err
		}
	}
	return buf.Flush()
}

// ReadLog reads what WriteLog wrote. Empty lines and those that start with # are left out.
func ReadLog(r io.Reader) ([]Op, error) {
	var list []Op
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		var o Op
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			return nil, fmt.Errorf("line %q: %w", text, err)
		}
		list = append(list, o)
	}
	return list, lines.Err()
}

// Data gives n bytes that depend on seed alone.
func Data(seed uint64, n int64) []byte {
	out := make([]byte, n)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range out {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		out[i] = byte(x >> 24)
	}
	return out
}

// ErrnoName gives an error in a form that two sides can be compared by: "ok", the name of its errno, or else its text.
func ErrnoName(err error) string {
	if err == nil {
		return "ok"
	}
	if name, ok := errno(err); ok {
		return name
	}
	return err.Error()
}
