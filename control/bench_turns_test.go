//go:build linux

package control

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/overlay"
	branching "github.com/hyperfs/hyperfs/overlay/branch"
	"github.com/hyperfs/hyperfs/session/turn"
)

// benchFiles is how many files the workspace of a benchmark has.
const benchFiles = 50000

// BenchmarkEndTurn measures the end of a turn through the socket, with 1 MB of state in messages of 1 KB: new with the end; sent by an update before; and from earlier
// turns, with 2 KB that are new.
func BenchmarkEndTurn(b *testing.B) {
	dir := b.TempDir()
	for i := range benchFiles {
		name := filepath.Join(dir, fmt.Sprint("d", i/500), fmt.Sprint(i))
		if i%500 == 0 {
			must(b, os.Mkdir(filepath.Dir(name), 0o755))
		}
		must(b, os.WriteFile(name, nil, 0o644))
	}
	w, err := branching.Open(overlay.Config{Workspace: dir, MaxCheckpoints: 1 << 30})
	must(b, err)
	b.Cleanup(func() { must(b, w.Close()) })
	s := start(b, w)
	n := 0
	messages := func(size int) []json.RawMessage {
		var list []json.RawMessage
		for total := 0; total < size; n++ {
			m := json.RawMessage(fmt.Sprintf(`{"role":"assistant","content":"%d %s"}`, n, strings.Repeat("some words, a line\\n", 50)))
			list = append(list, m)
			total += len(m)
		}
		return list
	}
	for _, tt := range []struct {
		name             string
		before, in, with int // bytes of earlier turns, of an update, and of the end
	}{{"new", 0, 0, 1e6}, {"updated", 0, 1e6, 0}, {"earlier", 1e6, 0, 2e3}, {"nothing", 0, 0, 0}} {
		b.Run(tt.name, func(b *testing.B) {
			var took []time.Duration
			var from string
			if tt.before > 0 {
				from = benchTurn(b, s, turn.BeginOptions{}, nil, messages(tt.before), &took)
				took = nil
			}
			for b.Loop() {
				b.StopTimer()
				o := turn.BeginOptions{NoState: true, From: from}
				benchTurn(b, s, o, messages(tt.in), messages(tt.with), &took)
				b.StartTimer()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "median-ms")
			b.ReportMetric(float64(took[len(took)/10].Microseconds())/1000, "p10-ms")
		})
	}
}

// benchTurn makes a turn, and notes how long its end takes.
func benchTurn(b *testing.B, s *started, o turn.BeginOptions, in, with []json.RawMessage, took *[]time.Duration) string {
	t, err := s.BeginTurn(ctx, o)
	must(b, err)
	if len(in) > 0 {
		_, err = s.UpdateTurn(ctx, t.ID, turn.Update{AddMessages: in})
		must(b, err)
		time.Sleep(300 * time.Millisecond) // a turn does something, too
	}
	end := turn.EndOptions{Outcome: turn.Completed, Update: &turn.Update{AddMessages: with}}
	begun := time.Now()
	_, err = s.EndTurn(ctx, t.ID, end)
	*took = append(*took, time.Since(begun))
	must(b, err)
	return t.ID
}
