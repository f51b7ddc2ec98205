package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hyperfs/hyperfs/control"
	hyper "github.com/hyperfs/hyperfs/overlay"
)

// hyperfs is a tree with hyperfs mounted in place, and a checkpoint active.
type hyperfs struct {
	program string
	dir     string
	flags   []string // of mount
	label   string   // "" means the program's own name
	client  *control.Client
}

func (h *hyperfs) name() string { return cmp.Or(h.label, "hyperfs") }
func (h *hyperfs) base() string { return h.dir }
func (h *hyperfs) root() string { return h.dir }

func (h *hyperfs) mount(ctx context.Context) error {
	if err := command(ctx, "/", h.program, append(append([]string{"mount"}, h.flags...), h.dir)...); err != nil {
		return err
	}
	workspace, err := filepath.EvalSymlinks(h.dir)
	if err != nil {
		return err
	}
	h.client, err = control.Dial(ctx, workspace)
	return err
}

// checkpoint makes one, and then drops those before it, so that runs don't pile up in the store. What only they needed is freed when it returns: in the background it would take
// the time of what is measured next.
func (h *hyperfs) checkpoint(ctx context.Context) error {
	old, err := h.client.List(ctx, hyper.ListOptions{})
	if err != nil {
		return err
	}
	if _, err := h.client.Snapshot(ctx, hyper.SnapshotOptions{Message: "bench"}); err != nil {
		return err
	}
	for _, c := range old {
		if err := h.client.Drop(ctx, c.ID); err != nil {
			return err
		}
	}
	_, err = h.client.GC(ctx)
	return err
}

func (h *hyperfs) unmount() error {
	if h.client != nil {
		h.client.Close()
		h.client = nil
	}
	if !mounted(h.dir) {
		return nil
	}
	ctx := context.Background()
	if err := command(ctx, "/", h.program, "unmount", h.dir); err != nil {
		command(ctx, "/", h.program, "unmount", "--lazy", h.dir)
		return fmt.Errorf("%s stayed busy: %w", h.dir, err)
	}
	return nil
}

// cleanUp unmounts a target and removes its tree.
func cleanUp(t target) {
	if err := as(t, t.unmount); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	if mounted(t.root()) {
		return
	}
	removeTree(t.base())
	if t.base() != t.root() { // the target has a directory for both
		removeTree(filepath.Dir(t.base()))
	}
}
