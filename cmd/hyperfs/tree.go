package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

func treeCommand() *cli.Command {
	return &cli.Command{
		Name:      "tree",
		Usage:     "draw checkpoints and branches as a tree",
		UsageText: "hyperfs tree [--all] [--branch B] [--subagent S] [--agent A]",
		Description: example("Each line follows the one above it; what stands beside it is indented. A branch is drawn at the checkpoint that\n"+
			"its state comes from. The newest is marked, and the one that undo goes back to.", "hyperfs tree --all"),
		Flags:  append(listFlags(), jsonFlag()),
		Action: arguments(0, 0, drawTree),
	}
}

func drawTree(c *cli.Context) error {
	return withWorkspace(c, func(w *control.Client) error {
		l, err := listed(c, w)
		if err != nil {
			return err
		}
		s, err := w.Status(c.Context)
		if err != nil {
			return err
		}
		d := newDrawing(l, s.Newest, s.Undo)
		list, err := w.Branches(c.Context, false)
		if err != nil {
			return err
		}
		d.add(list)
		return output(c, treeReply{Roots: d.nested(d.roots)}, func(out io.Writer) error {
			d.out, d.colour = out, colours(out)
			d.chains(d.roots, "")
			return d.err
		})
	})
}

// treeReply is the JSON form.
type treeReply struct {
	Roots []treeNode `json:"roots"`
}

type treeNode struct {
	checkpoint.Checkpoint
	Branches []checkpoint.Branch `json:"branches,omitempty"` // whose state comes from it
	Children []treeNode          `json:"children"`
}

// drawing prints checkpoints as a tree.
type drawing struct {
	roots        []checkpoint.Checkpoint
	children     map[string][]checkpoint.Checkpoint
	branches     map[string][]checkpoint.Branch
	newest, undo string
	out          io.Writer
	colour       bool
	err          error // the first that printing gave
}

// newDrawing sorts checkpoints below their parents, oldest first. One whose parent is not shown is a root.
func newDrawing(list []checkpoint.Checkpoint, newest, undo string) *drawing {
	d := &drawing{children: map[string][]checkpoint.Checkpoint{}, branches: map[string][]checkpoint.Branch{}, newest: newest, undo: undo}
	there := map[string]bool{}
	for _, k := range list {
		there[k.ID] = true
	}
	slices.SortStableFunc(list, func(a, b checkpoint.Checkpoint) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Seq, b.Seq)) // those of a branch are counted apart
	})
	for _, k := range list {
		if k.Parent == "" || !there[k.Parent] || k.Parent == k.ID {
			d.roots = append(d.roots, k)
		} else {
			d.children[k.Parent] = append(d.children[k.Parent], k)
		}
	}
	return d
}

// add puts branches at the checkpoints that their state comes from.
func (d *drawing) add(list []checkpoint.Branch) {
	for _, b := range list {
		at := cmp.Or(b.Head, b.ForkPoint)
		d.branches[at] = append(d.branches[at], b)
	}
}

// nested gives the JSON form of a list of siblings.
func (d *drawing) nested(list []checkpoint.Checkpoint) []treeNode {
	nodes := make([]treeNode, len(list))
	for i, k := range list {
		nodes[i] = treeNode{k, d.branches[k.ID], d.nested(d.children[k.ID])}
	}
	return nodes
}

// chains draws siblings: all but the last as side branches, the last in the column of its parent, so that a history
// without branches is a straight line however long it is.
func (d *drawing) chains(list []checkpoint.Checkpoint, prefix string) {
	for len(list) > 0 {
		last := len(list) - 1
		for _, k := range list[:last] {
			d.print(prefix+"├─", k)
			d.tips(k, prefix+"│ ")
			d.chains(d.children[k.ID], prefix+"│ ")
		}
		d.print(prefix, list[last])
		d.tips(list[last], prefix)
		list = d.children[list[last].ID]
	}
}

// tips draws the branches whose state comes from a checkpoint.
func (d *drawing) tips(k checkpoint.Checkpoint, prefix string) {
	list := d.branches[k.ID]
	for i, b := range list {
		turn := "├─"
		if i == len(list)-1 && len(d.children[k.ID]) == 0 {
			turn = "└─"
		}
		text := prefix + turn + "◇ " + paint(d.colour, cyan, quote(b.Name))
		if b.Message != "" {
			text += "  " + line(b.Message)
		}
		if d.err == nil {
			_, d.err = fmt.Fprintln(d.out, text)
		}
	}
}

func (d *drawing) print(prefix string, k checkpoint.Checkpoint) {
	if d.err != nil {
		return
	}
	text := fmt.Sprintf("%s● %s  %s", prefix, paint(d.colour, yellow, k.ID), clock(k.CreatedAt))
	if k.Branch != overlay.MainBranch {
		text += "  [" + quote(k.Branch) + "]"
	}
	if k.Status != checkpoint.Active {
		text += "  " + string(k.Status)
	}
	if a := about(k); a != "" {
		text += "  " + a
	}
	if k.ID == d.newest {
		text += paint(d.colour, green, "  ← newest")
	}
	if k.ID == d.undo {
		text += paint(d.colour, cyan, "  ← undo")
	}
	_, d.err = fmt.Fprintln(d.out, text)
}
