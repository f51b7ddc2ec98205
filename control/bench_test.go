package control

import (
	"context"
	"testing"

	"github.com/hyperfs/hyperfs/overlay"
)

// BenchmarkSnapshotOnOpenConnection measures all of a snapshot but the workspace's own part.
func BenchmarkSnapshotOnOpenConnection(b *testing.B) {
	s := start(b, &fakeWorkspace{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Snapshot(context.Background(), overlay.SnapshotOptions{Message: "before the build", Agent: "a"}); err != nil {
			b.Fatal(err)
		}
	}
}
