package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// openTurns opens a store that is closed when the test ends.
func openTurns(t *testing.T, dir string, o Options) *Turns {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.Turns().dir != "" {
			_ = s.Close()
		}
	})
	return s.Turns()
}

// again closes a store and opens it.
func again(t *testing.T, of *Turns, o Options) *Turns {
	t.Helper()
	if err := of.s.Close(); err != nil {
		t.Fatal(err)
	}
	dir := of.s.dir
	of.dir = "" // it is closed
	return openTurns(t, dir, o)
}

// someBytes are bytes that hardly anybody else has.
func someBytes(n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func keep(t *testing.T, of *Turns, blobs ...[]byte) []Blob {
	t.Helper()
	names, err := of.Keep(blobs...)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != len(blobs) {
		t.Fatalf("%d blobs have %d names", len(blobs), len(names))
	}
	return names
}

// readable fails the test unless the blobs are what they were.
func readable(t *testing.T, of *Turns, names []Blob, blobs ...[]byte) {
	t.Helper()
	for i, name := range names {
		got, err := of.Read(name)
		if err != nil || !bytes.Equal(got, blobs[i]) {
			t.Errorf("%s: %d bytes, %v; want the %d bytes that were kept", name, len(got), err, len(blobs[i]))
		}
	}
}

// record commits a turn that has a page of some blobs, and names others itself.
func record(t *testing.T, of *Turns, id string, paged []Blob, named ...Blob) {
	t.Helper()
	page, err := EncodePage(paged)
	if err != nil {
		t.Fatal(err)
	}
	s := TurnState{Pages: keep(t, of, page)}
	for _, b := range named {
		s.Artifacts = append(s.Artifacts, TurnArtifact{Name: string(b), Data: b})
	}
	if err := of.Put(Turn{ID: id, Status: TurnCompleted, State: s}); err != nil {
		t.Fatal(err)
	}
}

// sweep removes what no record names, and fails the test unless it is that many blobs.
func sweep(t *testing.T, of *Turns, want int) {
	t.Helper()
	if n, bytes, err := of.Sweep(context.Background()); err != nil || n != want || (bytes > 0) != (n > 0) {
		t.Errorf("Sweep = %d, %d, %v, want %d blobs", n, bytes, err, want)
	}
}

// problems gives what Check finds.
func problems(t *testing.T, of *Turns) (list []string) {
	t.Helper()
	if err := of.Check(context.Background(), func(where, what string) { list = append(list, where+": "+what) }); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestBlobsOfEverySizeComeBack(t *testing.T) {
	for _, syncs := range []bool{false, true} {
		t.Run(fmt.Sprint("sync=", syncs), func(t *testing.T) {
			sizes := []int{0, 1, 100, smallMax - 1, smallMax, smallMax + 1, 1 << 20}
			if !syncs && !testing.Short() {
				sizes = append(sizes, 50<<20)
			}
			of := openTurns(t, t.TempDir(), Options{Sync: syncs})
			var blobs [][]byte
			for _, n := range sizes {
				blobs = append(blobs, someBytes(n))
			}
			names := keep(t, of, blobs...)
			for i, name := range names {
				if name.Size() != int64(sizes[i]) {
					t.Errorf("%s is said to have %d bytes", name, name.Size())
				}
			}
			readable(t, of, names, blobs...)
			readable(t, again(t, of, Options{Sync: !syncs}), names, blobs...)
		})
	}
}

func TestManySmallBlobsAreKeptAtOnce(t *testing.T) {
	for _, syncs := range []bool{false, true} {
		t.Run(fmt.Sprint("sync=", syncs), func(t *testing.T) {
			of := openTurns(t, t.TempDir(), Options{Sync: syncs})
			blobs := make([][]byte, 10000)
			for i := range blobs {
				blobs[i] = fmt.Appendf(nil, "%d %s", i, strings.Repeat("x", i%700))
			}
			names := keep(t, of, blobs...)
			record(t, of, "turn", names)
			of = again(t, of, Options{Sync: syncs})
			readable(t, of, names, blobs...)
			sweep(t, of, 0)
			if err := of.Delete("turn"); err != nil {
				t.Fatal(err)
			}
			sweep(t, of, len(blobs)+1)
		})
	}
}

func TestWhatIsThereIsNotWrittenAgain(t *testing.T) {
	of := openTurns(t, t.TempDir(), Options{})
	small, large := someBytes(1000), someBytes(smallMax+1)
	names := keep(t, of, small, large, small, large)
	if names[0] != names[2] || names[1] != names[3] || names[0] == names[1] {
		t.Errorf("they are called %q", names)
	}
	before, err := os.Stat(of.path(names[1]))
	if err != nil {
		t.Fatal(err)
	}
	if err := of.s.settle(); err != nil {
		t.Fatal(err)
	}
	if again := keep(t, of, small, large); !reflect.DeepEqual(again, names[:2]) {
		t.Errorf("the second time, they are called %q", again)
	}
	if of.s.pending.size() != 0 {
		t.Error("the small one was committed again")
	}
	if after, err := os.Stat(of.path(names[1])); err != nil || !os.SameFile(before, after) || after.ModTime() != before.ModTime() {
		t.Errorf("the large one was written again: %v", err)
	}
}

func TestRecordsOfTurnsComeBack(t *testing.T) {
	of := openTurns(t, t.TempDir(), Options{})
	blob := keep(t, of, []byte("{}"))[0]
	want := []Turn{
		{ID: "a", Conversation: "c", WorksIn: "main", Base: "ckpt", Status: TurnPending, PID: 1, PIDStart: 2, CreatedAt: time.Unix(1, 2).UTC()},
		{ID: "b", Conversation: "c", Parent: "a", Index: 1, Status: TurnFailed, Error: &TurnError{Message: "m", Code: "X"}, Settled: true},
		{ID: "c", Status: TurnCompleted, State: TurnState{Messages: 1, Pages: []Blob{blob}, Artifacts: []TurnArtifact{{"n", blob}}, Custom: &blob, Bindings: &blob, Bytes: 9}},
	}
	gone := want[2]
	gone.FilesGone = true // is not stored
	if err := of.Put(want[0], want[1], gone); err != nil {
		t.Fatal(err)
	}
	of = again(t, of, Options{})
	got, damaged, err := of.All()
	if err != nil || len(damaged) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("All = %+v, %v, %v, want %+v", got, damaged, err, want)
	}
	if one, err := of.Get("b"); err != nil || !reflect.DeepEqual(one, want[1]) {
		t.Errorf("Get = %+v, %v", one, err)
	}
	if err := of.Delete("a", "nothing", "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := of.Get("b"); errs.CodeOf(err) != errs.NotFound {
		t.Errorf("Get of one that was deleted: %v", err)
	}
	if got, _, err := of.All(); err != nil || len(got) != 1 || got[0].ID != "c" {
		t.Errorf("All = %+v, %v, want c alone", got, err)
	}
}

func TestARecordIsCommittedWithItsTransactionOrNotAtAll(t *testing.T) {
	of := openTurns(t, t.TempDir(), Options{})
	no := errors.New("no")
	err := of.s.Update(func(tx *Tx) error {
		if err := tx.PutTurn(Turn{ID: "a"}); err != nil {
			return err
		}
		if r, ok, err := tx.Turn("a"); !ok || err != nil || r.ID != "a" {
			t.Errorf("in the transaction, Turn = %v, %v, %v", r, ok, err)
		}
		return no
	})
	if err != no {
		t.Fatalf("Update: %v", err)
	}
	if _, err := of.Get("a"); errs.CodeOf(err) != errs.NotFound {
		t.Errorf("Get: %v", err)
	}
}

func TestNamesOfBlobsAreExact(t *testing.T) {
	good := string(blobOf(sumOf(nil), 0))
	of := openTurns(t, t.TempDir(), Options{})
	for _, b := range []string{"", "-", "0", good + "0", good[:len(good)-1], good[1:], strings.ToUpper(good), good[:64] + "-+1", good[:64] + "-01", good[:64] + "--1",
		good[:64] + "-99999999999999999999", "../" + good, good + "/../x"} {
		if Blob(b).Size() != -1 {
			t.Errorf("%q is taken for a name", b)
		}
		if _, err := of.Read(Blob(b)); errs.CodeOf(err) != errs.Integrity {
			t.Errorf("Read of %q: %v", b, err)
		}
		if _, err := EncodePage([]Blob{Blob(b)}); err == nil {
			t.Errorf("%q can be in a page", b)
		}
	}
	if Blob(good).Size() != 0 {
		t.Errorf("%q is not taken for a name", good)
	}
}

func TestPagesComeBack(t *testing.T) {
	var list []Blob
	for n := range 50 {
		b, err := EncodePage(list)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodePage(b); err != nil || !reflect.DeepEqual(got, list) {
			t.Fatalf("a page of %d: %v, %v", n, got, err)
		}
		for cut := range min(len(b), 40) {
			if got, err := DecodePage(b[:len(b)-1-cut]); err == nil && len(got) >= n && n > 0 {
				t.Fatalf("a page of %d that was cut by %d has all", n, cut+1)
			}
		}
		list = append(list, blobOf(sumOf([]byte{byte(n)}), int64(n)<<(n%48)))
	}
}

func TestOnlyWhatNoRecordNamesIsSwept(t *testing.T) {
	of := openTurns(t, t.TempDir(), Options{})
	var blobs [][]byte
	for i := range 3 {
		blobs = append(blobs, someBytes(10+i), someBytes(smallMax+10+i))
	}
	names := keep(t, of, blobs...)
	record(t, of, "a", names[:2])
	record(t, of, "b", nil, names[2:4]...)
	sweep(t, of, 2)
	readable(t, of, names[:4], blobs[:4]...)
	for _, name := range names[4:] {
		if _, err := of.Read(name); errs.CodeOf(err) != errs.Integrity {
			t.Errorf("Read of what was swept: %v", err)
		}
	}
	keep(t, of, blobs...) // what was swept is written again
	readable(t, of, names, blobs...)
	sweep(t, of, 2)
	if err := of.Delete("a"); err != nil {
		t.Fatal(err)
	}
	sweep(t, of, 3)
	readable(t, of, names[2:4], blobs[2:4]...)
	if list := problems(t, of); len(list) > 0 {
		t.Errorf("problems: %q", list)
	}
}

func TestWhatIsInUseIsNotSwept(t *testing.T) {
	of := openTurns(t, t.TempDir(), Options{})
	small, large := someBytes(10), someBytes(smallMax+1)
	keep(t, of, small, large)
	done := of.Using()
	other := of.Using()
	names := keep(t, of, small, large) // finds them
	other()
	other() // does nothing more
	sweep(t, of, 0)
	readable(t, of, names, small, large)
	done()
	sweep(t, of, 2)
}

// TestSweepsAndKeepsAtOnceLoseNothing has turns begin and end while old ones are removed: the state of every turn with a record can be read at any time.
func TestSweepsAndKeepsAtOnceLoseNothing(t *testing.T) {
	of := openTurns(t, t.TempDir(), Options{})
	pool := make([][]byte, 40) // so few that turns have most in common
	for i := range pool {
		pool[i] = someBytes(20 + i)
	}
	for i := range 4 {
		pool[i] = someBytes(smallMax + 1 + i)
	}
	rounds := 150
	if testing.Short() {
		rounds = 40
	}
	var working, sweeping sync.WaitGroup
	stop := make(chan struct{})
	sweeping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, _, err := of.Sweep(context.Background()); err != nil {
				t.Errorf("Sweep: %v", err)
				return
			}
		}
	})
	for worker := range 3 {
		working.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(worker)))
			for n := range rounds {
				id := fmt.Sprint(worker, "-", n)
				if err := aTurn(of, id, pool, r); err != nil {
					t.Error(err)
					return
				}
				if err := of.Delete(id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	working.Wait()
	close(stop)
	sweeping.Wait()
	of.sweepAll(t)
}

// sweepAll fails the test if anything is left when there are no records.
func (t *Turns) sweepAll(tb testing.TB) {
	tb.Helper()
	if _, _, err := t.Sweep(context.Background()); err != nil {
		tb.Fatal(err)
	}
	err := t.s.View(func(tx *Tx) error {
		return tx.eachSize([]byte{keyBlob}, func([]byte, int64) error { return errors.New("there is a blob left") })
	})
	if err != nil {
		tb.Error(err)
	}
	if entries, err := os.ReadDir(t.dir); err != nil || len(entries) > 0 {
		tb.Errorf("%v are left: %v", entries, err)
	}
	if len(t.held) > 0 || t.users > 0 || t.sweeping {
		tb.Errorf("%d blobs are held, by %d users", len(t.held), t.users)
	}
}

// aTurn keeps some blobs, commits a record, and reads the state.
func aTurn(of *Turns, id string, pool [][]byte, r *rand.Rand) error {
	var blobs [][]byte
	for range 5 {
		blobs = append(blobs, pool[r.IntN(len(pool))])
	}
	done := of.Using()
	names, err := of.Keep(blobs...)
	if err == nil {
		var page []byte
		if page, err = EncodePage(names); err == nil {
			names, err = of.Keep(page)
		}
	}
	if err == nil {
		err = of.Put(Turn{ID: id, State: TurnState{Pages: names}})
	}
	done()
	if err != nil {
		return err
	}
	list, err := of.Page(names[0])
	for i, b := range list {
		if err != nil {
			break
		}
		var got []byte
		if got, err = of.Read(b); err == nil && !bytes.Equal(got, blobs[i]) {
			err = fmt.Errorf("%s is not what was kept", b)
		}
	}
	return err
}

func TestDamagedBlobsAreFoundAndNamed(t *testing.T) {
	for what, harm := range map[string]func(t *testing.T, of *Turns, large, small Blob){
		"a flipped bit in a file": func(t *testing.T, of *Turns, large, _ Blob) { flipIn(t, of.path(large), 70000) },
		"a missing file":          func(t *testing.T, of *Turns, large, _ Blob) { removeFile(t, of.path(large)) },
		"a cut file": func(t *testing.T, of *Turns, large, _ Blob) {
			if err := os.Truncate(of.path(large), 10); err != nil {
				t.Fatal(err)
			}
		},
		"a byte too many in the database": func(t *testing.T, of *Turns, _, small Blob) {
			s, _, _ := small.parse()
			setKey(t, of, blobKey(s), append(someBytes(100), 0))
		},
		"a missing key": func(t *testing.T, of *Turns, _, small Blob) {
			s, _, _ := small.parse()
			if err := of.s.Update(func(tx *Tx) error { return tx.delete(blobKey(s)) }); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			of := openTurns(t, t.TempDir(), Options{})
			small, large, whole := someBytes(100), someBytes(100000), someBytes(101)
			names := keep(t, of, small, large, whole)
			record(t, of, "turn", names[:2], names[2])
			harm(t, of, names[1], names[0])
			bad, data := names[0], small
			if strings.Contains(what, "file") {
				bad, data = names[1], large
			}
			if _, err := of.Read(bad); errs.CodeOf(err) != errs.Integrity || !strings.Contains(err.Error(), string(bad)) {
				t.Errorf("Read: %v, want an integrity error that names it", err)
			}
			if list := problems(t, of); len(list) != 1 || !strings.HasPrefix(list[0], "turn: ") || !strings.Contains(list[0], string(bad)) {
				t.Errorf("problems: %q, want the blob with the turn", list)
			}
			readable(t, of, names[2:], whole)
			sweep(t, of, 0) // what its record names stays
			keep(t, of, data)
			readable(t, of, names, small, large, whole)
			if list := problems(t, of); len(list) > 0 {
				t.Errorf("when it was kept again: %q", list)
			}
		})
	}
}

func TestADamagedRecordHidesNoOtherAndKeepsAllBlobs(t *testing.T) {
	for what, record := range map[string]string{"no JSON": `{"id": "b`, "of another turn": `{"id": "a"}`} {
		t.Run(what, func(t *testing.T) {
			of := openTurns(t, t.TempDir(), Options{})
			blob := someBytes(100)
			names := keep(t, of, blob)
			if err := of.Put(Turn{ID: "a"}, Turn{ID: "c"}); err != nil {
				t.Fatal(err)
			}
			setKey(t, of, turnKey("b"), []byte(record))
			all, damaged, err := of.All()
			if err != nil || len(all) != 2 || len(damaged) != 1 || damaged[0].ID != "b" || errs.CodeOf(damaged[0].Err) != errs.Integrity {
				t.Errorf("All = %v, %v, %v, want b damaged", all, damaged, err)
			}
			if _, err := of.Get("b"); errs.CodeOf(err) != errs.Integrity || !strings.Contains(err.Error(), " b: ") {
				t.Errorf("Get: %v, want an integrity error that names it", err)
			}
			if list := problems(t, of); len(list) != 1 || !strings.HasPrefix(list[0], "b: ") {
				t.Errorf("problems: %q", list)
			}
			if n, _, err := of.Sweep(context.Background()); n != 0 || errs.CodeOf(err) != errs.Integrity {
				t.Errorf("Sweep = %d, %v, want nothing removed", n, err)
			}
			readable(t, of, names, blob)
			if err := of.Delete("b"); err != nil {
				t.Fatal(err)
			}
			sweep(t, of, 1)
		})
	}
}

func TestADamagedPageKeepsAllBlobs(t *testing.T) {
	for what, harm := range map[string]func(t *testing.T, of *Turns, s sum){
		"missing": func(t *testing.T, of *Turns, s sum) {
			if err := of.s.Update(func(tx *Tx) error { return tx.delete(blobKey(s)) }); err != nil {
				t.Fatal(err)
			}
		},
		"flipped": func(t *testing.T, of *Turns, s sum) { setKey(t, of, blobKey(s), []byte("?")) },
	} {
		t.Run(what, func(t *testing.T) {
			of := openTurns(t, t.TempDir(), Options{})
			blob := someBytes(100)
			names := keep(t, of, blob)
			record(t, of, "turn", names)
			r, err := of.Get("turn")
			if err != nil {
				t.Fatal(err)
			}
			s, _, _ := r.State.Pages[0].parse()
			harm(t, of, s)
			if list := problems(t, of); len(list) != 1 || !strings.HasPrefix(list[0], "turn: ") {
				t.Errorf("problems: %q", list)
			}
			if n, _, err := of.Sweep(context.Background()); n != 0 || errs.CodeOf(err) != errs.Integrity {
				t.Errorf("Sweep = %d, %v, want nothing removed", n, err)
			}
			readable(t, of, names, blob)
		})
	}
}

func TestAFileThatWasBeingWrittenIsGoneAtTheNextOpen(t *testing.T) {
	of := openTurns(t, t.TempDir(), Options{})
	names := keep(t, of, someBytes(smallMax+1))
	if err := os.WriteFile(filepath.Join(of.dir, tempBlob), make([]byte, 10), 0o600); err != nil {
		t.Fatal(err)
	}
	of = again(t, of, Options{})
	entries, err := os.ReadDir(of.dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != string(names[0]) {
		t.Errorf("there are %v, %v", entries, err)
	}
}

func TestTheSizeOfTheStoreHasTheBlobs(t *testing.T) {
	of := openTurns(t, t.TempDir(), Options{})
	before := of.s.Bytes()
	keep(t, of, someBytes(3<<20))
	if after := of.s.Bytes(); after < before+3<<20 {
		t.Errorf("it has %d bytes, and had %d before 3 MiB were kept", after, before)
	}
}

func TestAFailedKeepLeavesNothingInUse(t *testing.T) {
	of := openTurns(t, t.TempDir(), Options{})
	if err := os.WriteFile(of.dir, nil, 0o600); err != nil { // where the directory should be
		t.Fatal(err)
	}
	if names, err := of.Keep([]byte("small"), someBytes(smallMax+1)); err == nil {
		t.Fatalf("Keep = %v", names)
	}
	removeFile(t, of.dir)
	if err := os.Mkdir(of.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	of.sweepAll(t)
}

// setKey writes a value under a key.
func setKey(t *testing.T, of *Turns, key, value []byte) {
	t.Helper()
	if err := of.s.Update(func(tx *Tx) error { return tx.Set(key, value) }); err != nil {
		t.Fatal(err)
	}
}

func removeFile(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

func flipIn(t *testing.T, name string, at int) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err == nil {
		b[at] ^= 4
		err = os.WriteFile(name, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
