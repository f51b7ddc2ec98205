//go:build linux

package turn_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/session/turn"
)

// envRaces says how often an abort and an end race.
const envRaces = "HYPERFS_TEST_TURN_RACES"

// spin waits, more exactly than sleep.
func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		runtime.Gosched()
	}
}

// An abort that has said so is never lost, and the files, the state and the record are always those of the same turn.
func TestAnAbortAndAnEndNeverOvertakeEachOther(t *testing.T) {
	h := open(t)
	h.keep = 200
	h.forget()
	h.run(turn.BeginOptions{Conversation: "c"}, "0")
	n := 300
	if more, err := strconv.Atoi(os.Getenv(envRaces)); err == nil {
		n = more
	}
	random := rand.New(rand.NewPCG(3, 4))
	last := "0"
	counts := map[checkpoint.TurnStatus]int{}
	for i := 1; i <= n; i++ {
		text := fmt.Sprint(i)
		b := h.begin(turn.BeginOptions{Conversation: "c", NoState: true})
		h.write("", "file", text)
		h.update(b.ID, turn.Update{SetMessages: &[]json.RawMessage{message(text)}, Custom: quoted(text)})
		outcome := turn.Completed
		if i%8 == 0 {
			outcome = turn.Failed
		}
		force := random.IntN(2) == 0
		var aborted turn.Turn
		var ended turn.Result
		var abortErr, endErr error
		var both sync.WaitGroup
		start := make(chan struct{})
		late := time.Duration(random.IntN(40)-20) * 10 * time.Microsecond // the abort's, or the end's
		both.Go(func() {
			<-start
			spin(late)
			aborted, abortErr = h.Abort(ctx, b.ID, turn.AbortOptions{Force: force})
		})
		both.Go(func() {
			<-start
			spin(-late)
			ended, endErr = h.End(ctx, b.ID, turn.EndOptions{Outcome: outcome})
		})
		close(start)
		both.Wait()
		must(t, abortErr)
		must(t, endErr)
		if aborted.Status != ended.Turn.Status {
			t.Fatalf("turn %d: the abort says %s, the end %s", i, aborted.Status, ended.Turn.Status)
		}
		if outcome == turn.Completed && ended.Turn.Status == checkpoint.TurnCompleted {
			last = text
		}
		counts[ended.Turn.Status]++
		if r := h.get(b.ID); r.Status != ended.Turn.Status || !r.Settled {
			t.Fatalf("turn %d is %+v, its end said %+v", i, r, ended.Turn)
		}
		if file, err := os.ReadFile(filepath.Join(h.dir, "file")); err != nil || string(file) != last {
			t.Fatalf("turn %d: the file holds %q, %v, want %q", i, file, err, last)
		}
		if i%50 == 0 {
			if st := h.state(h.head("c")); string(st.Custom) != fmt.Sprintf("%q", last) || len(st.Messages) != 1 || string(st.Messages[0]) != string(message(last)) {
				t.Fatalf("turn %d: the state is %s, want %s", i, st.Custom, last)
			}
		}
		if i%(n/3) == 0 {
			h.reopen()
		}
	}
	t.Log(counts)
	if counts[checkpoint.TurnAborted] == 0 || counts[checkpoint.TurnCompleted] == 0 || counts[checkpoint.TurnFailed] == 0 {
		t.Errorf("nothing was raced: %v", counts)
	}
}
