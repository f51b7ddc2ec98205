package checkpoint

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"
)

// A turn ends with state that nobody has kept before: Keep, and the commit of the record that names it.
func BenchmarkKeepAndPut(b *testing.B) {
	for _, c := range []struct{ blobs, bytes int }{{1, 1 << 20}, {1000, 1 << 10}, {16, 64 << 10}, {10, 1 << 10}} {
		for _, syncs := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dx%d,sync=%v", c.blobs, c.bytes, syncs), func(b *testing.B) {
				s, err := Open(b.TempDir(), Options{Sync: syncs})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				blobs := make([][]byte, c.blobs)
				for i := range blobs {
					blobs[i] = make([]byte, c.bytes)
				}
				var took []time.Duration
				b.ResetTimer()
				for n := range b.N {
					b.StopTimer()
					for i, blob := range blobs {
						binary.LittleEndian.PutUint64(blob, uint64(n*len(blobs)+i+1))
					}
					time.Sleep(20 * time.Millisecond) // turns are not that many
					b.StartTimer()
					begin := time.Now()
					done := s.Turns().Using()
					names, err := s.Turns().Keep(blobs...)
					if err == nil {
						var page []byte
						page, err = EncodePage(names)
						if err == nil {
							names, err = s.Turns().Keep(page)
						}
					}
					if err == nil {
						err = s.Turns().Put(Turn{ID: fmt.Sprint(n), Status: TurnCompleted, State: TurnState{Pages: names}})
					}
					done()
					took = append(took, time.Since(begin))
					if err != nil {
						b.Fatal(err)
					}
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[0].Microseconds()), "min-µs")
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-µs")
			})
		}
	}
}

func BenchmarkSumAll(b *testing.B) {
	for _, c := range []struct{ blobs, bytes int }{{1, 1 << 20}, {1000, 1 << 10}} {
		b.Run(fmt.Sprintf("%dx%d", c.blobs, c.bytes), func(b *testing.B) {
			blobs := make([][]byte, c.blobs)
			for i := range blobs {
				blobs[i] = make([]byte, c.bytes)
			}
			for b.Loop() {
				sumAll(blobs)
			}
		})
	}
}
