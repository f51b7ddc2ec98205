package strategytest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/hyperfs/hyperfs/strategy"
)

var namesCases = []testCase{
	{"Names that are none are refused by every call", badNames},
	{"A name may be as long as the filesystem allows", longName},
	{"A reference of an unknown tier is refused", foreignRef},
	{"List gives every preimage and nothing else", list},
	{"List stops when told to", listStops},
	{"Preimages may be removed while they are listed", removeWhileListing},
	{"Remove of what is gone is no error", removeTwice},
}

func badNames(b *bench) {
	f := b.file("file", dense(10))
	for _, name := range []string{"", ".", "..", "../up", "a/b", "/abs", ".hidden", "nul\x00", "a b", "é", `a\b`, "a:b", strings.Repeat("n", 256)} {
		ref := strategy.Ref{Tier: b.s.Kind(), Name: name, Size: 10}
		_, saveErr := b.s.Save(f, name)
		_, openErr := b.s.Open(ref)
		_, sumErr := b.s.Sum(ref)
		for call, err := range map[string]error{
			"Save": saveErr, "Open": openErr, "Sum": sumErr,
			"Restore": b.s.Restore(ref, f), "Verify": b.s.Verify(ref), "Remove": b.s.Remove(ref),
			"Materialize": b.materialize(ref, "made", true),
		} {
			if !errors.Is(err, fs.ErrInvalid) {
				b.Errorf("%s of the name %q says %v", call, name, err)
			}
		}
	}
	if names := b.names(); len(names) != 0 {
		b.Errorf("there is now %v", names)
	}
	b.fileHolds(f, dense(10))
}

func longName(b *bench) {
	ref := b.save(b.file("file", dense(10)), strings.Repeat("n", 255))
	b.must(b.s.Verify(ref))
}

func foreignRef(b *bench) {
	ref := b.saved(dense(10))
	ref.Tier = "elsewhere"
	if err := b.s.Verify(ref); !errors.Is(err, fs.ErrInvalid) {
		b.Errorf("Verify says %v", err)
	}
	if err := b.s.Remove(ref); !errors.Is(err, fs.ErrInvalid) {
		b.Errorf("Remove says %v", err)
	}
}

func list(b *bench) {
	want := map[string]int64{}
	for i := range 50 {
		name := fmt.Sprint("preimage-", i)
		b.save(b.file("file", dense(i)), name)
		want[name] = int64(i)
	}
	b.must(os.Mkdir(filepath.Join(b.kept.Dir, "directory"), 0o755))
	b.must(os.WriteFile(filepath.Join(b.kept.Dir, ".hidden"), nil, 0o600))
	if got := b.names(); !maps.Equal(got, want) {
		b.Errorf("List gives %v", got)
	}
	if got := b.names(); !maps.Equal(got, want) {
		b.Errorf("the second List gives %v", got)
	}
}

func listStops(b *bench) {
	f := b.file("file", dense(1))
	b.save(f, "a")
	b.save(f, "b")
	enough, calls := errors.New("enough"), 0
	err := b.s.List(func(string, int64) error { calls++; return enough })
	if !errors.Is(err, enough) || calls != 1 {
		b.Errorf("List says %v after %d calls", err, calls)
	}
}

func removeWhileListing(b *bench) {
	const n = 1500 // more than one read of the directory gives
	f := b.file("file", dense(1))
	refs := map[string]strategy.Ref{}
	for i := range n {
		name := fmt.Sprint("preimage-", i)
		refs[name] = b.save(f, name)
	}
	seen := 0
	b.must(b.s.List(func(name string, _ int64) error {
		seen++
		return b.s.Remove(refs[name])
	}))
	if left := b.names(); seen != n || len(left) != 0 {
		b.Errorf("%d of %d were listed, %d are left", seen, n, len(left))
	}
}

func removeTwice(b *bench) {
	ref := b.saved(dense(10))
	b.must(b.s.Remove(ref))
	b.must(b.s.Remove(ref))
	if err := b.s.Verify(ref); !errors.Is(err, strategy.ErrMissing) {
		b.Errorf("Verify says %v", err)
	}
	b.saved(dense(20)) // the name is free again
}
