//go:build linux

package turn_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
	"github.com/hyperfs/hyperfs/session/turn"
	"github.com/hyperfs/hyperfs/test/ops"
	"github.com/hyperfs/hyperfs/test/treefs"
	"golang.org/x/sys/unix"
)

var ctx = context.Background()

// host is a workspace with branches, and an engine for it.
type host struct {
	testing.TB
	*turn.Engine
	dir  string
	keep int
	w    *branch.Workspace
	main *treefs.FS
}

// ramDir is a directory in RAM where there is one.
func ramDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hyperfs-turn-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func open(t testing.TB) *host {
	t.Helper()
	h := &host{TB: t, dir: ramDir(t), keep: turn.DefaultKeep}
	must(t, os.WriteFile(filepath.Join(h.dir, "file"), []byte("0"), 0o644))
	h.open()
	t.Cleanup(h.close)
	return h
}

func (h *host) open() {
	h.Helper()
	w, err := branch.Open(overlay.Config{Workspace: h.dir, NoTmpfs: true})
	for wait := time.Millisecond; errs.CodeOf(err) == errs.Busy && wait < 4*time.Second; wait *= 2 { // a child that was killed has the lock still
		time.Sleep(wait)
		w, err = branch.Open(overlay.Config{Workspace: h.dir, NoTmpfs: true})
	}
	must(h, err)
	h.w = w
	h.main = treefs.New(w.Tree(), treefs.Options{})
	h.Engine = turn.New(w, turn.Options{Keep: h.keep})
}

func (h *host) close() {
	h.Helper()
	if h.w == nil {
		return
	}
	must(h, h.Engine.Close())
	h.main.Drop()
	must(h, h.w.Close())
	h.w = nil
}

// reopen is an orderly end of the daemon, and another one.
func (h *host) reopen() {
	h.Helper()
	h.close()
	h.open()
}

// forget is what a crash leaves: nothing in memory.
func (h *host) forget() {
	h.Helper()
	h.Engine = turn.New(h.w, turn.Options{Keep: h.keep})
}

// write writes a file of a line, "" for main.
func (h *host) write(line, name, text string) {
	h.Helper()
	h.in(line, func(fs *treefs.FS) { writeTo(h, fs, name, text) })
}

func writeTo(t testing.TB, fs *treefs.FS, name, text string) {
	t.Helper()
	f, err := fs.Open(name, unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY, 0o644)
	must(t, err)
	defer func(f ops.File) { must(t, f.Close()) }(f)
	_, err = f.WriteAt([]byte(text), 0)
	must(t, err)
}

// in calls fn with the tree of a line.
func (h *host) in(line string, fn func(*treefs.FS)) {
	h.Helper()
	if line == "" {
		fn(h.main)
		return
	}
	v, err := h.w.Manager().Volume(line)
	must(h, err)
	defer v.Close()
	fs := treefs.NewVolume(v, treefs.Options{})
	fn(fs)
	fs.Drop()
}

// holds fails the test unless a file has this text; "" means that there is no such file.
func (h *host) holds(line, name, text string) {
	h.Helper()
	h.in(line, func(fs *treefs.FS) {
		st, err := fs.Capture()
		must(h, err)
		e, ok := st[name]
		var want treestate.Hash
		_, _ = want.Write([]byte(text))
		if ok != (text != "") || ok && e.Sum != want.Sum() {
			h.Errorf("in %q %s is not %q", line, name, text)
		}
	})
}

func (h *host) begin(o turn.BeginOptions) turn.Begun {
	h.Helper()
	b, err := h.Begin(ctx, o)
	must(h, err)
	return b
}

// run makes a whole turn, which writes its text to a file and to its state.
func (h *host) run(o turn.BeginOptions, text string) turn.Turn {
	h.Helper()
	b := h.begin(o)
	line := b.WorksIn
	if line == overlay.MainBranch {
		line = ""
	}
	h.write(line, "file", text)
	h.update(b.ID, turn.Update{AddMessages: []json.RawMessage{message(text)}, Custom: quoted(text)})
	return h.end(b.ID, turn.EndOptions{Outcome: turn.Completed}).Turn
}

func (h *host) update(id string, u turn.Update) turn.UpdateEvent {
	h.Helper()
	ev, err := h.Update(ctx, id, u)
	must(h, err)
	return ev
}

func (h *host) end(id string, o turn.EndOptions) turn.Result {
	h.Helper()
	r, err := h.End(ctx, id, o)
	must(h, err)
	return r
}

func (h *host) state(id string) *turn.State {
	h.Helper()
	st, err := h.State(id)
	must(h, err)
	return st
}

func (h *host) get(id string) turn.Turn {
	h.Helper()
	r, err := h.Get(id)
	must(h, err)
	return r
}

func (h *host) head(conversation string) string {
	h.Helper()
	list, err := h.Conversations()
	must(h, err)
	for _, c := range list {
		if c.Name == conversation {
			return c.Head
		}
	}
	return ""
}

func (h *host) checkpointStatus(id string) checkpoint.Status {
	h.Helper()
	c, err := h.w.Get(id)
	if errs.CodeOf(err) == errs.NotFound {
		return ""
	}
	must(h, err)
	return c.Status
}

func message(text string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"role":"user","content":%q}`, text))
}

func quoted(text string) json.RawMessage { return json.RawMessage(fmt.Sprintf("%q", text)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, code errs.Code, mentions string) {
	t.Helper()
	if errs.CodeOf(err) != code || !strings.Contains(err.Error(), mentions) {
		t.Errorf("error = %v (%s), want %s that mentions %q", err, errs.CodeOf(err), code, mentions)
	}
}

func same(t testing.TB, what string, got, want any) {
	t.Helper()
	g, err := json.Marshal(got)
	must(t, err)
	w, err := json.Marshal(want)
	must(t, err)
	if string(g) != string(w) {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}
