package main

import (
	"context"
	"log/slog"
	"os"
	"strconv"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/overlay/branch"
)

// All that the command line asks of package fs is in this file.

// howToMakeOne is the hint where no workspace is found.
const howToMakeOne = "hyperfs mount makes one"

// openMountable opens a workspace, and gives what mounts it.
func openMountable(ctx context.Context, cfg overlay.Config) (closable, mounter, error) {
	w, err := patiently(ctx, func() (*branch.Workspace, error) { return branch.Open(cfg) })
	if err != nil {
		return nil, nil, err
	}
	return w, func(o mountOptions, log *slog.Logger) (view, error) {
		runDaemonProcess()
		s, err := fs.Mount(w.Tree(), o.Mountpoint, fs.Options{
			AllowOther:     o.AllowOther,
			Debug:          o.Debug,
			InPlace:        o.inPlace(),
			Passthrough:    o.Passthrough,
			NoPassthrough:  o.NoPassthrough,
			OpenRequests:   o.OpenRequests || o.StrictIgnored, // which refuses at the open, and to map too
			NoXattrs:       o.NoXattrs,
			NoNearReader:   o.NoNearReader,
			NoSingleReader: o.NoSingleReader,
			NoURing:        o.NoURing,
			Logger:         log,
			Shelf:          w.Shelf(),
			Echo:           !o.NoInotify,
		})
		if err != nil {
			return nil, err
		}
		w.Manager().SetNotifier(s.Notifier())
		w.SetChanged(func(kind, name string) { s.ShelfChanged(fs.ShelfKind(kind), name) })
		return fuseView{s}, nil
	}, nil
}

// fuseView is a mount.
type fuseView struct{ *fs.Server }

// BranchMounts lists what MountBranch has made.
func (v fuseView) BranchMounts() (list []control.BranchMount) {
	for _, b := range v.Server.BranchMounts() {
		list = append(list, control.BranchMount{Branch: b.Branch, Mountpoint: b.Mountpoint})
	}
	return list
}

// Counters tells how many requests of the kernel there were, and how many inodes it holds.
func (v fuseView) Counters() map[string]uint64 {
	counts := v.Counts()
	counts["nodes"] = uint64(v.Nodes())
	return counts
}

// Stats tells what the kernel has asked for.
func (v fuseView) Stats() control.MountStats {
	s := v.Server.Stats()
	m := control.MountStats{Events: s.Events, ReadBytes: s.Read, WrittenBytes: s.Written, KernelNodes: s.Nodes}
	for _, o := range s.Operations {
		m.Operations = append(m.Operations, control.NewOperation(o.Name, o.WaitsFor, o.Errors, o.Took))
	}
	return m
}

// hasFuse fails where this user, or this program, can mount nothing at all.
func hasFuse(mountpoint string) error {
	if err := checkFuse(mountpoint); err != nil {
		return err
	}
	return fs.Probe()
}

// hasBackend says that this program has both backends.
func hasBackend(string, string) error { return nil }

// spoolDir names the store's directory also where a mount hides its path.
func spoolDir(store *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(store.Fd())) }

// checkFuse fails where this user cannot mount, before anything is made for the mount.
func checkFuse(mountpoint string) error {
	hints := map[string]string{
		featureDevice: "load it with `modprobe fuse`, let this user open it with `chmod 0666 /dev/fuse`, or give the container `--device /dev/fuse`",
		featureHelper: "apt-get install fuse3",
	}
	for _, f := range localFeatures() {
		if !f.On && (f.Name != featureHelper || os.Geteuid() != 0) { // root needs no helper
			return errs.New(control.Unsupported, "mount", mountpoint, "%s: %s", f.Name, f.Note).WithHint(hints[f.Name])
		}
	}
	return nil
}

// isDeadMount reports whether dir is a mount of ours whose daemon is gone.
func isDeadMount(dir string) bool { return fs.IsDead(dir) }

// cleanDeadMount takes away a mount of ours whose daemon is gone. It does nothing to any other directory.
func cleanDeadMount(dir string) error {
	if _, err := fs.CleanDeadMount(dir); err != nil {
		return err
	}
	if isDeadMount(dir) {
		return errs.New(control.Busy, "clean up", dir, "its daemon died, and its mount cannot be taken away").WithHint("umount -l " + dir)
	}
	return nil
}

// isMounted reports whether dir has a mount of ours, dead or alive, of whomever.
func isMounted(dir string) bool {
	mounted, err := fs.IsMounted(dir)
	return mounted && err == nil
}

// InUse tells what the kernel and our rights allowed.
func (v fuseView) InUse() []control.Feature {
	f := v.Features()
	list := []control.Feature{
		{Name: "protocol", On: true, Note: f.Protocol},
		{Name: "passthrough", On: f.Passthrough, Note: f.PassthroughReason},
		{Name: "no_open", On: f.NoOpen, Note: f.NoOpenReason},
		{Name: "uring", On: f.URing, Note: f.URingReason},
		{Name: "single reader", On: f.SingleReader, Note: readersNote(f)},
		{Name: "inotify", On: f.Echo, Note: f.EchoReason},
		{Name: "request size", On: true, Note: bytesText(int64(f.MaxWrite))},
	}
	for _, name := range f.Capabilities {
		if name == "passthrough" || name == "no_open" {
			continue // whether it is used is said above
		}
		list = append(list, control.Feature{Name: name, On: true})
	}
	for _, name := range f.Missing {
		list = append(list, control.Feature{Name: name, Note: "the kernel does not have it"})
	}
	return list
}

// readersNote says why it is not so that mostly one thread reads /dev/fuse.
func readersNote(f fs.Features) string {
	switch {
	case f.SingleReader:
		return ""
	case f.URing:
		return "requests come by io_uring"
	}
	return "it is switched off"
}

// boundBranch gives the branch that is bind-mounted at dir, and its workspace's mountpoint, both "" where there is none.
func boundBranch(dir string) (name, mountpoint string) { return fs.BoundBranch(dir) }

// bind shows a directory of a mount at another path too.
func bind(dir, at string) error { return fs.Bind(dir, at) }

// unbind takes away what bind has made.
func unbind(at string, lazy bool) error { return fs.Unbind(at, lazy) }
