package strategy

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

const maxName = 255 // bytes

// checkName refuses names that could lead out of the tier's directory, hide there, or mean something else on another
// system.
func checkName(name string) error {
	if name == "" || len(name) > maxName || name[0] == '.' {
		return fmt.Errorf("not a name for a preimage: %w", fs.ErrInvalid)
	}
	for i := range len(name) {
		if !inName(name[i]) {
			return fmt.Errorf("not a name for a preimage: %w", fs.ErrInvalid)
		}
	}
	return nil
}

// checkEntry refuses a name that is no name of a directory entry.
func checkEntry(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("the name %q: %w", name, fs.ErrInvalid)
	}
	return nil
}

func inName(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c == '-' || c == '_' || c == '.'
}

// allKinds are the tiers of all systems: a store can come from another one.
var allKinds = []Kind{Reflink, Tmpfs, PosixLink, NtfsLink, PureManifest}

// checkRef refuses what can't have come from a Save of a tier that keeps its preimages here.
func (p preimages) checkRef(ref Ref) error {
	if !slices.Contains(allKinds, ref.Tier) || ref.Tier.Volatile() != p.volatile {
		return fmt.Errorf("a preimage of the tier %q: %w", ref.Tier, fs.ErrInvalid)
	}
	if ref.Size < 0 {
		return fmt.Errorf("a preimage of %d bytes: %w", ref.Size, fs.ErrInvalid)
	}
	return checkName(ref.Name)
}

func checkStat(ref Ref, st stat) error {
	if !st.regular {
		return fmt.Errorf("%w: not a regular file", ErrCorrupt)
	}
	if st.size != ref.Size {
		return fmt.Errorf("%w: it has %d bytes, %d were saved", ErrCorrupt, st.size, ref.Size)
	}
	return nil
}

func checkMtime(ref Ref, st stat) error {
	if st.mtime != ref.Mtime {
		return fmt.Errorf("%w: it was written to after it was saved", ErrCorrupt)
	}
	return nil
}

func checkSum(ref Ref, f file) error {
	sum, err := sumOf(source{f, true}, ref.Size)
	if err != nil {
		return err
	}
	return sameSum(ref, sum)
}

// sameSum compares the checksum of what was read with that of what was saved.
func sameSum(ref Ref, sum uint64) error {
	if ref.HasSum && sum != ref.Sum {
		return fmt.Errorf("%w: its checksum is %016x, %016x was saved", ErrCorrupt, sum, ref.Sum)
	}
	return nil
}
