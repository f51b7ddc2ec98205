package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/control"
	hyper "github.com/hyperfs/hyperfs/overlay"
)

// filesCurve measures workspaces with more and more files.
func (b *bench) filesCurve(l lower, c *curve) error {
	*c = curve{Name: "files", Title: "The same work in a larger workspace", X: "files"}
	if !b.wants("curves/" + c.Name) {
		return nil
	}
	for _, files := range []int{1_000, 10_000, 100_000, 1_000_000} {
		files = b.scale(files)
		if err := roomFor(l.dir, files); err != nil {
			b.report.leftOut(l, fmt.Sprintf("%s of %d", c.Name, files), err.Error())
			return nil
		}
		s := b.snapshots()
		err := b.withTree(l, s, files, func(root string) error {
			for n := range b.scale(10) {
				if err := s.unmount(); err != nil {
					return err
				}
				if err := c.timed("mount", files, func() error { return s.mount(b.ctx) }); err != nil {
					return err
				}
				if err := b.snapshotAndWrite(c, s, root, files, files); err != nil {
					return err
				}
				if err := changeFiles(root, files, 50, n); err != nil {
					return err
				}
				if err := c.timed("roll back 100 changes", files, func() error { return s.restore(b.ctx) }); err != nil {
					return err
				}
				if err := s.forget(b.ctx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// roomFor reports whether so many small files have room in dir, and in memory if that is where they go.
func roomFor(dir string, files int) error {
	const each = 8 << 10 // a page, the inode, and what the kernel has of it, twice
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return err
	}
	room := fs.Bavail * uint64(fs.Bsize)
	if fs.Type == unix.TMPFS_MAGIC {
		room = min(room, (memory.Freeram+memory.Bufferram)*uint64(memory.Unit))
	}
	if need := uint64(files) * each; room < need {
		return fmt.Errorf("it needs %d MiB and there are %d", need>>20, room>>20)
	}
	if need := uint64(files) * 11 / 10; fs.Files > 0 && fs.Ffree < need {
		return fmt.Errorf("it needs %d inodes and there are %d", need, fs.Ffree)
	}
	return nil
}

// snapshotAndWrite makes a snapshot, and then writes to ten old files for the first time.
func (b *bench) snapshotAndWrite(c *curve, s *snapshots, root string, files, x int) error {
	const writes = 10
	for i := range writes { // a look-up is no part of a write
		if _, err := os.Lstat(filepath.Join(root, treePath(i*(files/writes)))); err != nil {
			return err
		}
	}
	time.Sleep(collectTime)
	if err := c.timed("snapshot", x, func() error { return s.save(b.ctx) }); err != nil {
		return err
	}
	start := time.Now()
	for i := range writes {
		if err := writeBlock(filepath.Join(root, treePath(i*(files/writes))), blockOfText[:100]); err != nil {
			return err
		}
	}
	c.add("first write to a file", x, time.Since(start)/writes)
	return nil
}

// checkpointsCurve measures a workspace with more and more checkpoints. The same ten files have changed after each.
func (b *bench) checkpointsCurve(l lower, c *curve) error {
	*c = curve{Name: "checkpoints", Title: "The same work with more checkpoints, ten changes in each", X: "checkpoints"}
	if !b.wants("curves/" + c.Name) {
		return nil
	}
	s := b.snapshots("--max-checkpoints", "2000")
	return b.withTree(l, s, amongFiles, func(root string) error {
		var ids []string
		for _, count := range []int{1, 10, 100, b.scale(1_000)} {
			for len(ids) < count {
				if err := s.save(b.ctx); err != nil {
					return err
				}
				ids = append(ids, s.id)
				if err := rewrite(root, amongFiles, amongChanges, len(ids)); err != nil {
					return err
				}
			}
			for n := range max(3, b.scale(10)) {
				progress("%s: %d checkpoints, %d", l.name, count, n+1)
				if err := b.amongCheckpoints(c, s, root, ids); err != nil {
					return err
				}
				ids = append(ids[1:], ids[0]) // what was rolled back to is the newest now
			}
		}
		return nil
	})
}

const (
	amongFiles   = 1_000
	amongChanges = 10
)

// amongCheckpoints measures what there is to do where there are checkpoints, and leaves as many.
func (b *bench) amongCheckpoints(c *curve, s *snapshots, root string, ids []string) error {
	if err := b.snapshotAndWrite(c, s, root, amongFiles, len(ids)); err != nil {
		return err
	}
	if err := s.client.Drop(b.ctx, s.id); err != nil {
		return err
	}
	err := c.timed("list", len(ids), func() error {
		list, err := s.client.List(b.ctx, hyper.ListOptions{})
		if err == nil && len(list) != len(ids) {
			err = fmt.Errorf("%d are listed", len(list))
		}
		return err
	})
	if err != nil {
		return err
	}
	for n, to := range []struct{ name, id string }{{"roll back to the newest", ids[len(ids)-1]}, {"roll back to the oldest", ids[0]}} {
		if err := rewrite(root, amongFiles, amongChanges, n); err != nil {
			return err
		}
		time.Sleep(collectTime)
		var r control.RollbackReply
		err := c.timed(to.name, len(ids), func() (err error) {
			r, err = s.client.Rollback(b.ctx, to.id, hyper.RollbackOptions{})
			if err == nil && r.Restored+r.Modified < amongChanges {
				err = fmt.Errorf("%d names and %d files were put back", r.Restored, r.Modified)
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := s.client.Drop(b.ctx, r.Undo); err != nil {
			return err
		}
	}
	return nil
}

// changesCurve measures more and more changes of old files.
func (b *bench) changesCurve(l lower, c *curve) error {
	*c = curve{Name: "changes", Title: "More files that have changed since the checkpoint", X: "changed files"}
	if !b.wants("curves/" + c.Name) {
		return nil
	}
	files := b.scale(100_000)
	s := b.snapshots()
	return b.withTree(l, s, files, func(root string) error {
		for changed := 1; changed <= files; changed *= 10 {
			for n := range max(3, b.scale(min(20, files/changed))) {
				progress("%s: %d changes, %d", l.name, changed, n+1)
				if err := b.afterChanges(c, s, root, files, changed, n); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (b *bench) afterChanges(c *curve, s *snapshots, root string, files, changed, n int) error {
	if err := s.save(b.ctx); err != nil {
		return err
	}
	first := s.id
	if err := rewrite(root, files, changed, n); err != nil {
		return err
	}
	err := c.timed("diff", changed, func() error {
		d, err := s.client.Diff(b.ctx, control.Between{}, false)
		if err == nil && len(d.Changes) != changed {
			err = fmt.Errorf("%d changes are listed", len(d.Changes))
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := c.timed("snapshot", changed, func() error { return s.save(b.ctx) }); err != nil {
		return err
	}
	s.id = first
	if err := c.timed("roll back", changed, func() error { return s.restore(b.ctx) }); err != nil {
		return err
	}
	if err := isRestored(root); err != nil {
		return err
	}
	return s.forget(b.ctx)
}

// rewrite writes over files, spread over the tree.
func rewrite(root string, files, changed, n int) error {
	for i := range changed {
		if err := os.WriteFile(filepath.Join(root, treePath(i*(files/changed))), fmt.Appendf(nil, "export const round = %d;\n", n), 0o644); err != nil {
			return err
		}
	}
	return nil
}
