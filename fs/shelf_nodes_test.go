package fs

import (
	"fmt"
	"sync"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
)

// Nodes come and go while their volume is given up: after that the table must have none of them, and still those of others.
func TestAVolumeThatIsGivenUpTakesItsNodesAlong(t *testing.T) {
	tree := openTree(t)
	s := newShelf(&countingShelf{vol: tree.Volume()}, tree)
	var dirs []overlay.Inode
	for i := range 200 {
		d, _, err := tree.Mkdir(tree.Root(), fmt.Sprint(i), 0o755, nil)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, d)
	}
	mine, others := dirs[:100], dirs[100:]
	main := newVolume(tree.Volume(), true)
	for range 50 {
		l, err := s.borrow(slot{s.dirs.kinds[Branches], "b"})
		if err != nil {
			t.Fatal(err)
		}
		table := newNodeTable()
		for _, d := range others {
			table.ref(node{main, d})
		}
		var work sync.WaitGroup
		for range 2 {
			work.Go(func() {
				for i, d := range mine {
					if table.ref(node{l.vol, d}) && i%3 == 0 {
						_, _, gone := table.forget(d.Num(), 1)
						if gone {
							l.vol.let()
						}
					}
				}
			})
		}
		l.gone.Store(true)
		nodes := table.of(l.vol)
		for _, n := range nodes {
			if n.vol != l.vol {
				t.Fatal("it is another volume's")
			}
		}
		for _, n := range nodes {
			if _, _, gone := table.forget(n.num(), 1<<62); gone {
				l.vol.let()
			}
		}
		work.Wait()
		if table.len() != len(others) {
			t.Fatalf("%d nodes are in the table, and not %d", table.len(), len(others))
		}
		if left := l.vol.known(); len(left) > 0 {
			t.Fatalf("%d nodes are still known", len(left))
		}
		s.strike(l)
		l.let()
	}
}
