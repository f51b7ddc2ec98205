package ops

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

type seeded struct{ *rand.Rand }

func (s seeded) Intn(_ string, n int) int { return s.IntN(n) }

// viewOf lists what exists below dir.
func viewOf(t *testing.T, dir string) View {
	t.Helper()
	s, err := treestate.Capture(dir, treestate.Options{NoHash: true})
	if err != nil {
		t.Fatal(err)
	}
	var v View
	for _, p := range s.Paths()[1:] {
		switch e := s[p]; {
		case e.IsDir():
			v.Dirs = append(v.Dirs, p)
		case e.IsRegular():
			v.Files = append(v.Files, p)
		default:
			v.Others = append(v.Others, p)
		}
	}
	return v
}

func TestEveryKindOfOperationIsMadeAndMostSucceed(t *testing.T) {
	dir := t.TempDir()
	fs, err := OpenDirFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	x := NewExecutor(fs)
	defer x.CloseHandles()
	g := &Generator{Root: os.Getuid() == 0}
	made, succeeded := map[Kind]int{}, map[Kind]int{}
	c := seeded{rand.New(rand.NewPCG(3, 4))}
	for range 4000 {
		v := viewOf(t, dir)
		v.Handles = x.Handles()
		slices.Sort(v.Handles)
		v.Mapped = v.Handles
		o := g.Next(c, v)
		made[o.Kind]++
		if x.Apply(o) == nil {
			succeeded[o.Kind]++
		}
	}
	all, good := 0, 0
	for _, w := range weights {
		if g.allows(w.kind) && succeeded[w.kind] < 5 {
			t.Errorf("%s was made %d times, of which %d succeeded", w.kind, made[w.kind], succeeded[w.kind])
		}
		all, good = all+made[w.kind], good+succeeded[w.kind]
	}
	if good*3 < all*2 {
		t.Errorf("only %d of %d operations succeeded", good, all)
	}
}

func TestLogKeepsOperationsExactly(t *testing.T) {
	list := []Op{
		{Kind: Create, Path: "g \xff\n/\"x\"", Mode: 0o4755, Off: 3, Len: 5, Seed: 1 << 60},
		{Kind: SetXattr, Path: "a", Name: "user.a", Value: "\x00\x01\xff"},
		{Kind: Rename, Path: "a", To: "b", Flags: 2},
	}
	var text strings.Builder
	if err := WriteLog(&text, list); err != nil {
		t.Fatal(err)
	}
	got, err := ReadLog(strings.NewReader("# a comment\n" + text.String()))
	if err != nil || !slices.Equal(got, list) {
		t.Errorf("read %v (%v), want %v", got, err, list)
	}
}
