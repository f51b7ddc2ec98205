//go:build linux

package turn_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/session/turn"
)

// envVictim makes this test binary end a turn, and die in that, instead of running tests. Its value is two lines: the workspace, and how to end it.
const envVictim = "HYPERFS_TEST_TURN"

const (
	victimTurn  = "ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAV"
	victimFirst = "ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAA"
)

// victimTB ends a process that did not die where it should have.
type victimTB struct{ testing.TB }

func (victimTB) Helper()        {}
func (victimTB) Cleanup(func()) {}

func (victimTB) Fatal(args ...any) {
	println("victim:", fmt.Sprint(args...))
	os.Exit(1)
}

func (victimTB) Errorf(format string, args ...any) {
	println("victim:", fmt.Sprintf(format, args...))
	os.Exit(1)
}

// ends are the ways to end a turn.
var ends = map[string]func(h *host){
	"complete": func(h *host) {
		h.end(victimTurn, turn.EndOptions{Outcome: turn.Completed, Update: &turn.Update{Custom: quoted("2")}})
	},
	"fail": func(h *host) { h.end(victimTurn, turn.EndOptions{Outcome: turn.Failed}) },
	"abort": func(h *host) {
		_, err := h.Abort(ctx, victimTurn, turn.AbortOptions{Force: true})
		must(h, err)
	},
	"abort, then end": func(h *host) {
		_, err := h.Abort(ctx, victimTurn, turn.AbortOptions{})
		must(h, err)
		h.end(victimTurn, turn.EndOptions{Outcome: turn.Completed})
	},
}

// victim makes a turn, and another whose end is cut short.
func victim(what string) {
	dir, how, _ := strings.Cut(what, "\n")
	h := &host{TB: victimTB{}, dir: dir}
	h.open()
	b := h.begin(turn.BeginOptions{Conversation: "c", ID: victimFirst})
	h.write("", "file", "1")
	h.end(b.ID, turn.EndOptions{Outcome: turn.Completed, Update: &turn.Update{Custom: quoted("1"), AddMessages: []json.RawMessage{message("1")}}})
	h.begin(turn.BeginOptions{Conversation: "c", ID: victimTurn})
	h.write("", "file", "2")
	h.write("", "new", "2")
	ends[how](h)
	if os.Getenv(crash.EnvTrace) != "" {
		_ = json.NewEncoder(os.Stdout).Encode(crash.Passes())
		os.Exit(0)
	}
	os.Exit(3) // it was not cut short
}

// runVictim runs one, and gives what it prints, and whether it was killed.
func runVictim(t *testing.T, dir, how, env string) (out string, killed bool) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	c := exec.Command(exe)
	c.Env = append(os.Environ(), envVictim+"="+dir+"\n"+how, env)
	c.Stderr = os.Stderr
	b, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		s, _ := exit.Sys().(syscall.WaitStatus)
		return string(b), s.Signaled() && s.Signal() == syscall.SIGKILL
	}
	must(t, err)
	return string(b), false
}

func TestAKillAtAnyStepOfAnEndLeavesOneOrTheOther(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts many processes")
	}
	for how := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			prepared := func() *host {
				h := &host{TB: t, dir: ramDir(t), keep: turn.DefaultKeep}
				must(t, os.WriteFile(h.dir+"/file", []byte("0"), 0o644))
				return h
			}
			out, _ := runVictim(t, prepared().dir, how, crash.EnvTrace+"=1")
			var passes map[string]int
			must(t, json.Unmarshal([]byte(out), &passes))
			if passes["turn-kept"] < 1 || passes["turn-begun"] != 2 {
				t.Fatalf("passed were %v", passes)
			}
			for point, times := range passes { // the last time is in the end of the turn, if it is of that at all
				if strings.HasPrefix(how, "abort") && !strings.HasPrefix(point, "turn-") {
					continue // its rollback has the steps of a failure's
				}
				h := prepared()
				at := fmt.Sprintf("%s:%d", point, times)
				if _, killed := runVictim(t, h.dir, how, crash.EnvAt+"="+at); !killed {
					if strings.HasPrefix(point, "turn-") { // others may be passed in the background, and not at all
						t.Errorf("%s was not reached", at)
					}
					continue
				}
				h.open()
				checkEnd(h, at)
				h.close()
			}
		})
	}
}

// checkEnd fails the test unless the turn, its checkpoint, its state and the files say the same.
func checkEnd(h *host, at string) {
	h.Helper()
	problems, err := h.w.Fsck(ctx, true)
	if err != nil || len(problems) > 0 {
		h.Errorf("%s: fsck: %v, %v", at, problems, err)
	}
	r, err := h.Get(victimTurn)
	if err != nil { // it had not begun: what is cut short is the first turn
		return
	}
	isThere := h.checkpointStatus(victimTurn) == checkpoint.Active
	st, stateErr := h.State(victimTurn)
	switch {
	case r.Status == checkpoint.TurnCompleted:
		if !isThere || stateErr != nil || string(st.Custom) != `"2"` || len(st.Messages) != 1 {
			h.Errorf("%s: it is completed, its checkpoint is there: %v, its state %+v, %v", at, isThere, st, stateErr)
		}
		h.holds("", "file", "2")
	case isThere:
		h.Errorf("%s: it is %s, and has a checkpoint", at, r.Status)
	case r.Settled:
		h.holds("", "file", "1")
		h.holds("", "new", "")
	default: // under way still, or just begun: it can be ended
		h.end(victimTurn, turn.EndOptions{Outcome: turn.Failed})
		h.holds("", "file", "1")
		h.holds("", "new", "")
	}
	st, err = h.State(victimFirst)
	if err != nil || string(st.Custom) != `"1"` {
		h.Errorf("%s: the first turn's state is %+v, %v", at, st, err)
	}
	b := h.begin(turn.BeginOptions{Conversation: "c"})
	if want := victimFirst; r.Status != checkpoint.TurnCompleted && b.Parent != want {
		h.Errorf("%s: it goes on from %s", at, b.Parent)
	}
}
