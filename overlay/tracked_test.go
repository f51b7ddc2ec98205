//go:build linux

package overlay_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
)

// heard keeps what watchers would be told.
type heard struct{ effects []overlay.Effect }

func (*heard) InvalEntry(overlay.Inode, string)             {}
func (*heard) InvalInode(overlay.Inode)                     {}
func (*heard) FlushInode(overlay.Inode)                     {}
func (*heard) Removed(overlay.Inode, string, overlay.Inode) {}
func (h *heard) Tell(effects []overlay.Effect, forget func()) {
	h.effects = append(h.effects, effects...)
	forget()
}

func TestWatchersAreToldOfTrackedFilesAndOfNothingElseThatIsIgnored(t *testing.T) {
	s := deps(t)
	const meta = "node_modules/.cache/meta.json"
	_, err := s.w.Track(context.Background(), []string{meta})
	s.ok(err)
	h := &heard{}
	s.tr.SetNotifier(h)
	id := s.snapshot()
	s.overwrite(meta, "meta 2", 0)
	s.overwrite("node_modules/left/index.js", "LEFT", 0)
	s.write("node_modules/left/new.js", "new")
	s.overwrite("src/main.js", "MAIN", 0)
	s.rollback(id)
	told := map[string]bool{}
	for _, e := range h.effects {
		told[filepath.Join(e.Path, e.Name)] = true
	}
	for name, want := range map[string]bool{meta: true, "src/main.js": true, "node_modules/left/index.js": false, "node_modules/left/new.js": false} {
		if told[name] != want {
			t.Errorf("%s: told %v", name, told[name])
		}
	}
}

func TestWhatIsProvedOfACheckpointKnowsWhatIsIgnored(t *testing.T) {
	s := deps(t)
	const meta = "node_modules/.cache/meta.json"
	_, err := s.w.Track(context.Background(), []string{meta})
	s.ok(err)
	id := s.snapshot()
	s.overwrite(meta, "meta 2", 0)
	s.overwrite("src/main.js", "MAIN", 0)
	s.rename("node_modules/left", "src/left", 0)
	s.reopen()
	if r := s.recover()[id]; !r.CanRehydrate {
		t.Fatal(r.Reason)
	}
	copies, err := filepath.Glob(s.dir + "/.hyperfs/tracked/*")
	if err != nil || len(copies) != 1 {
		t.Fatal(copies, err)
	}
	s.ok(os.WriteFile(copies[0], []byte("meta X"), 0o600))
	if r := s.recover()[id]; r.CanRehydrate {
		t.Error("a copy is damaged, and nobody says so")
	}
	if _, err := s.w.Rehydrate(context.Background(), id); err == nil {
		t.Error("it was rehydrated")
	}
}

func TestADiffTellsOfAnOutputWhoseContractHasEnded(t *testing.T) {
	s := deps(t)
	ctx := context.Background()
	const meta = "node_modules/.cache/meta.json"
	first := s.snapshot()
	_, err := s.w.DeclareOutputs(ctx, overlay.OutputContract{Tool: "vite", Checkpoint: first, Outputs: []overlay.Output{{Path: meta}}})
	s.ok(err)
	second := s.snapshot()
	s.ok(s.w.Drop(ctx, first))
	s.overwrite(meta, "meta 2", 0)
	d, err := s.w.Diff(ctx, second, "", true)
	s.ok(err)
	if len(d.Changes) != 1 || d.Changes[0].Path != meta || d.Changes[0].Kind != overlay.Modified {
		t.Errorf("%+v", d.Changes)
	}
	s.rollback(second)
	s.reads(map[string]string{meta: "meta 1"})
}
