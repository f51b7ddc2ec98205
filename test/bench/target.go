package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// target is a way to reach a tree: the plain lower filesystem, hyperfs, or a peer.
type target interface {
	name() string
	// base is the directory on the lower filesystem where the tree is prepared.
	base() string
	// root is where the tree is worked on while it's mounted.
	root() string
	mount(ctx context.Context) error
	// checkpoint makes sure that there is a new checkpoint, where the target has such a thing.
	checkpoint(ctx context.Context) error
	// unmount also works on what isn't mounted.
	unmount() error
}

// targets gives those that work here, the plain one first.
func (b *bench) targets(l lower, g group) []target {
	at := func(name string) string { return filepath.Join(l.dir, name) }
	all := []target{
		&plain{dir: at("plain")},
		&hyperfs{program: b.o.hyperfs, dir: at("hyperfs")},
	}
	if g.daemonIO {
		all = append(all, &hyperfs{program: b.o.hyperfs, dir: at("hyperfs-daemon"), flags: []string{withPassthrough}, label: withPassthrough})
		if u, err := b.user(at("hyperfs-user")); err != nil {
			b.report.leftOut(l, g.name+" as "+ordinaryUser, err.Error())
		} else if u != nil {
			all = append(all, u)
		}
	}
	if !b.o.peers || g.slow && b.o.quick {
		return all
	}
	if os.Geteuid() == 0 {
		all = append(all, &overlay{command: "mount", dir: at("overlayfs")})
	}
	if installed("fuse-overlayfs") {
		all = append(all, &overlay{command: "fuse-overlayfs", dir: at("fuse-overlayfs")})
	}
	if installed("bindfs") {
		all = append(all, &bindfs{dir: at("bindfs")})
	}
	return all
}

// plain is the lower filesystem itself.
type plain struct{ dir string }

func (p *plain) name() string                     { return "plain" }
func (p *plain) base() string                     { return p.dir }
func (p *plain) root() string                     { return p.dir }
func (p *plain) mount(context.Context) error      { return nil }
func (p *plain) checkpoint(context.Context) error { return nil }
func (p *plain) unmount() error                   { return nil }

// bindfs shows the tree as it is, through FUSE without caching or passthrough.
type bindfs struct{ dir string }

func (t *bindfs) name() string { return "bindfs" }
func (t *bindfs) base() string { return filepath.Join(t.dir, "base") }
func (t *bindfs) root() string { return filepath.Join(t.dir, "mnt") }
func (t *bindfs) mount(ctx context.Context) error {
	if err := os.MkdirAll(t.root(), 0o755); err != nil {
		return err
	}
	return command(ctx, t.dir, "bindfs", t.base(), t.root())
}
func (t *bindfs) checkpoint(context.Context) error { return nil }
func (t *bindfs) unmount() error                   { return unmountFUSE(t.root()) }

// overlay is the kernel's overlayfs or fuse-overlayfs: one writable layer over the tree.
type overlay struct {
	command string
	dir     string
}

func (t *overlay) name() string { return filepath.Base(t.dir) }
func (t *overlay) base() string { return filepath.Join(t.dir, "base") }
func (t *overlay) root() string { return filepath.Join(t.dir, "mnt") }
func (t *overlay) mount(ctx context.Context) error {
	upper, work := filepath.Join(t.dir, "upper"), filepath.Join(t.dir, "work")
	for _, d := range []string{t.root(), upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	o := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", t.base(), upper, work)
	args := []string{"-o", o, t.root()}
	if t.command == "mount" {
		args = append([]string{"-t", "overlay", "overlay"}, args...)
	}
	return command(ctx, t.dir, t.command, args...)
}
func (t *overlay) checkpoint(context.Context) error { return nil }
func (t *overlay) unmount() error {
	if t.command == "mount" {
		return unmountBy(t.root(), "umount")
	}
	return unmountFUSE(t.root())
}

func unmountFUSE(dir string) error { return unmountBy(dir, "fusermount3", "-u") }

// unmountBy unmounts dir if something is mounted on it: at first as it should be, then lazily.
func unmountBy(dir string, argv ...string) error {
	if !mounted(dir) {
		return nil
	}
	ctx := context.Background()
	var err error
	for range 20 {
		if err = command(ctx, "/", argv[0], append(argv[1:], dir)...); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	lazy := "-l"
	if argv[0] == "fusermount3" {
		lazy = "-z"
	}
	command(ctx, "/", argv[0], append(argv[1:], lazy, dir)...)
	return fmt.Errorf("%s stayed busy: %w", dir, err)
}

// mounted reports whether dir is a mountpoint. The paths of a run have no character that mountinfo escapes.
func mounted(dir string) bool {
	info, err := os.ReadFile("/proc/self/mountinfo")
	return err == nil && strings.Contains(string(info), " "+dir+" ")
}

// command runs a program in dir. Its output is in the error.
func command(ctx context.Context, dir, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = time.Second // a daemon that goes to the background keeps the output open
	out, err := cmd.CombinedOutput()
	if err != nil && err != exec.ErrWaitDelay {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, brief(out))
	}
	return nil
}

// brief gives the start of what a program said, on one line.
func brief(out []byte) string {
	text := strings.Join(strings.Fields(string(out)), " ")
	return text[:min(len(text), 300)]
}
