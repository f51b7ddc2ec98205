package fs

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// BenchmarkRequests is what requests for the live tree cost in the daemon, without the kernel: of each kind that warm caches don't spare.
func BenchmarkRequests(b *testing.B) {
	w, err := overlay.Open(overlay.Config{Workspace: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	s := newFilesystem(w.Tree(), Options{InPlace: true}, slog.New(slog.DiscardHandler))
	defer s.OnUnmount()
	ok := func(st fuse.Status) {
		if !st.Ok() {
			b.Fatal(st)
		}
	}
	root := fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}
	var f fuse.CreateOut
	ok(s.Create(nil, &fuse.CreateIn{InHeader: root, Flags: unix.O_RDWR, Mode: 0o644}, "f", &f))
	s.Release(nil, &fuse.ReleaseIn{Fh: f.Fh})
	for i := range 100 {
		var out fuse.EntryOut
		ok(s.Mkdir(nil, &fuse.MkdirIn{InHeader: root, Mode: 0o755}, fmt.Sprint(i), &out))
	}
	node := fuse.InHeader{NodeId: f.NodeId}
	for _, c := range []struct {
		name    string
		request func()
	}{
		{"lookup", func() {
			var out fuse.EntryOut
			ok(s.Lookup(nil, &root, "f", &out))
			s.Forget(out.NodeId, 1)
		}},
		{"getattr", func() {
			var out fuse.AttrOut
			ok(s.GetAttr(nil, &fuse.GetAttrIn{InHeader: node}, &out))
		}},
		{"setattr", func() {
			var out fuse.AttrOut
			in := fuse.SetAttrIn{}
			in.InHeader, in.Valid, in.Mode = node, fuse.FATTR_MODE, 0o644
			ok(s.SetAttr(nil, &in, &out))
		}},
		{"open and release", func() {
			var out fuse.OpenOut
			ok(s.Open(nil, &fuse.OpenIn{InHeader: node, Flags: unix.O_RDWR}, &out))
			s.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
		}},
		{"create and unlink", func() {
			var out fuse.CreateOut
			ok(s.Create(nil, &fuse.CreateIn{InHeader: root, Flags: unix.O_RDWR, Mode: 0o644}, "new", &out))
			s.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
			ok(s.Unlink(nil, &root, "new"))
			s.Forget(out.NodeId, 1)
		}},
		{"readdir", func() {
			out := fuse.NewDirEntryList(make([]byte, 16<<10), 0)
			ok(s.ReadDir(nil, &fuse.ReadIn{InHeader: root, Size: 16 << 10}, out))
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.request()
			}
		})
	}
}
