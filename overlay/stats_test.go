//go:build linux

package overlay_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
)

func TestWhatIsSavedIsCounted(t *testing.T) {
	s := hotSpace(t, overlay.HotConfig{FileBytes: 5000})
	s.ok(os.WriteFile(filepath.Join(s.dir, "mid"), bytes.Repeat([]byte("m"), 9000), 0o644))
	s.ok(os.WriteFile(filepath.Join(s.dir, "large"), bytes.Repeat([]byte("l"), 1<<20), 0o644))
	s.ok(os.WriteFile(filepath.Join(s.dir, "gone"), []byte("g"), 0o644))
	before := s.w.Stats()
	id := s.snapshot()
	s.overwrite("b.txt", "X", 0)
	s.overwrite("mid", "X", 0)
	s.overwrite("large", "X", 0)
	s.overwrite("large", "X", 700_000)
	s.unlink("gone")
	d := s.w.Stats().Sub(before)
	want := []overlay.PreimageStats{
		{Kind: "blocks", Count: 2, Bytes: 8192}, {Kind: "hot", Count: 1, Bytes: d.Preimages[1].Bytes}, {Kind: "pure-manifest", Count: 1, Bytes: 9000}, {Kind: "trash", Count: 1},
	}
	if !slices.Equal(d.Preimages, want) || d.Preimages[1].Bytes == 0 || d.Snapshots != 1 || d.Rollbacks != 0 {
		t.Errorf("%+v, not %+v", d, want)
	}
	if d.Hot.Hits != 1 || d.Hot.Spills != 1 || d.Nodes == 0 || d.Descriptors == 0 {
		t.Errorf("%+v", d)
	}
	s.rollback(id)
	if d := s.w.Stats().Sub(before); d.Rollbacks != 1 {
		t.Errorf("%+v", d)
	}
}
