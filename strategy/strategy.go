// Package strategy holds the tiers: where and how the bytes of a preimage are kept. A tier knows files and bytes, not
// checkpoints. All tiers give identical results; only speed and durability differ.
package strategy

import (
	"errors"
	"os"
)

// Kind names a tier.
type Kind string

// The tiers.
const (
	Reflink      Kind = "reflink"
	Tmpfs        Kind = "tmpfs"
	PosixLink    Kind = "posix-link"
	NtfsLink     Kind = "ntfs-link"
	PureManifest Kind = "pure-manifest"
)

// Hot is the kind of what the hot buffer keeps. It stands in front of a tier, and is none that could be asked for.
const Hot Kind = "hot"

// Volatile reports whether preimages of the tier are gone after a reboot.
func (k Kind) Volatile() bool { return k == Tmpfs }

// ErrCorrupt says that a preimage isn't what was saved. Errors of Verify, Restore, Materialize and Open wrap it.
var ErrCorrupt = errors.New("preimage is corrupt")

// ErrMissing says that a preimage is gone. Errors of Verify, Restore, Materialize and Open wrap it.
var ErrMissing = errors.New("preimage is missing")

// Ref names one saved preimage. It is stored in the undo log.
type Ref struct {
	Tier   Kind
	Name   string // within the tier
	Size   int64  // bytes
	Mtime  int64  // ns since 1970: of the tier's own file when it was saved; a cheap sign that nobody touched it
	Sum    uint64 // of size and bytes, the same for every layout of holes: see summer for what is hashed; 0 with HasSum false where it was not computed
	HasSum bool
	Blocks bool // it is a block preimage, see Blocks; Size is what the original had, and there are neither Mtime nor Sum
}

// Strategy is one tier, ready for use. Its methods may be called concurrently, but only one at a time for one name.
// None of them changes the file offset of a descriptor that is passed in, and none closes it. A file that is passed in
// must not be changed by anybody else meanwhile; if it is, the call still ends and fails or succeeds as a whole, with some mixture of bytes.
//
// A name is 1 to 255 ASCII letters, digits, '-', '_' and '.', not starting with a dot. Anything else is fs.ErrInvalid,
// and so is a Ref of a tier that keeps its preimages elsewhere. All tiers but tmpfs keep them in the same way in the
// same directory, so each takes the others': a store stays usable when the tier changes.
type Strategy interface {
	Kind() Kind

	// Save puts the whole content of the regular file src, open for reading, away under name, which must be free
	// (fs.ErrExist). Holes of 4 KiB and more stay holes where the filesystem keeps them. It takes no more than the size
	// that src has at the start. When it returns, the preimage is complete (and on disk, if the tier was opened with
	// Sync). On an error nothing is left behind. ENOSPC, EDQUOT and EROFS reach the caller unchanged (errors.Is). If the
	// process dies within, an incomplete file may stay under name.
	Save(src *os.File, name string) (Ref, error)

	// Restore makes the regular file dst, open for reading and writing, equal to the preimage: bytes, size, holes. It
	// changes neither mode nor owner; the times become those of any write. If it is interrupted, running it again gives
	// the whole result. Damage that only the checksum shows may be found when dst has been changed already: a caller for
	// whom that is too late calls Verify first.
	Restore(ref Ref, dst *os.File) error

	// Materialize makes the preimage appear as a regular file name in the directory dirfd, where no such name exists
	// (fs.ErrExist). With share, the file may be the tier's own (a hard link): the caller must call Remove(ref) before
	// anybody can write to it, and Verify may fail from when its times are set; and it must have called Verify, as damage may go
	// unseen here. Without, it is independent. Mode, owner and times of the new file are unspecified; the caller sets them. On
	// an error nothing is left behind.
	Materialize(ref Ref, dirfd int, name string, share bool) error

	// Open opens the preimage for reading. It proves no more than that it is there and has the right size.
	Open(ref Ref) (*os.File, error)

	// Verify proves that the preimage is there and is what was saved: size, and its checksum if it has one, else its mtime.
	Verify(ref Ref) error

	// Sum reads the preimage and fills in its checksum, for tiers whose Save doesn't read the bytes. A Ref that has
	// one already comes back as it is.
	Sum(ref Ref) (Ref, error)

	// Remove frees the preimage. Removing what is gone is not an error.
	Remove(ref Ref) error

	// List calls fn with the name and the size in bytes of every preimage that is there, in no order, until fn fails;
	// then it returns that error. fn may call Remove. Incomplete files of a Save that was cut off are listed too.
	List(fn func(name string, size int64) error) error

	// Close releases descriptors. It removes nothing.
	Close() error
}

// Options of a tier.
type Options struct {
	Sync  bool   // fsync every preimage before Save returns; RAM can't do that, so there is no tmpfs then
	NoRAM bool   // Auto takes no volatile tier
	RAM   string // directory of the tier tmpfs; "" means /dev/shm/hyperfs, for an ordinary user with "-" and the user ID behind it
}

// Probe is the answer to "would this tier work here?".
type Probe struct {
	Kind   Kind   `json:"kind"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason"` // what was tried and what it said
}
