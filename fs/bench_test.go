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
	tree := w.Tree()
	s := newFilesystem(tree, Options{InPlace: true}, slog.New(slog.DiscardHandler))
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
	var held fuse.CreateOut
	ok(s.Create(nil, &fuse.CreateIn{InHeader: root, Flags: unix.O_WRONLY, Mode: 0o644}, "open", &held))
	changeMode := func(n fuse.InHeader) {
		var out fuse.AttrOut
		in := fuse.SetAttrIn{}
		in.InHeader, in.Valid, in.Mode = n, fuse.FATTR_MODE, 0o644
		ok(s.SetAttr(nil, &in, &out))
	}
	openAndRelease := func(flags uint32) {
		var out fuse.OpenOut
		ok(s.Open(nil, &fuse.OpenIn{InHeader: node, Flags: flags}, &out))
		s.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
	}
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
		{"lookup of nothing", func() {
			var out fuse.EntryOut
			ok(s.Lookup(nil, &root, "none", &out))
		}},
		{"setattr", func() { changeMode(node) }},
		{"setattr of an open file", func() { changeMode(fuse.InHeader{NodeId: held.NodeId}) }},
		{"getxattr", func() {
			if _, st := s.GetXAttr(nil, &node, "user.none", nil); st != fuse.Status(unix.ENODATA) {
				b.Fatal(st)
			}
		}},
		{"open and release", func() { openAndRelease(unix.O_RDWR) }},
		{"open for reading and release", func() { openAndRelease(unix.O_RDONLY) }},
		{"rename", func() {
			for _, names := range [][2]string{{"f", "g"}, {"g", "f"}} {
				ok(s.Rename(nil, &fuse.RenameIn{InHeader: root, Newdir: fuse.FUSE_ROOT_ID}, names[0], names[1]))
			}
		}},
		{"mkdir and rmdir", func() {
			var out fuse.EntryOut
			ok(s.Mkdir(nil, &fuse.MkdirIn{InHeader: root, Mode: 0o755}, "new", &out))
			ok(s.Rmdir(nil, &root, "new"))
			s.Forget(out.NodeId, 1)
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
		{"readdirplus", func() {
			s.listings.drop(tree.Root()) // the kernel knows nothing of the entries
			out := fuse.NewDirEntryList(make([]byte, 32<<10), 0)
			ok(s.ReadDirPlus(nil, &fuse.ReadIn{InHeader: root, Size: 32 << 10}, out))
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
