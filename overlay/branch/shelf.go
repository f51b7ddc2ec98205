//go:build linux

package branch

import (
	"github.com/hyperfs/hyperfs/overlay"
)

// Shelf shows branches and checkpoints to a mount: see fs.Shelf.
type Shelf struct{ f *Workspace }

// Shelf gives what a mount can show besides main.
func (f *Workspace) Shelf() Shelf { return Shelf{f} }

// Checkpoints gives the IDs of the active checkpoints, of main and of branches.
func (s Shelf) Checkpoints() []string {
	list, err := s.f.List(overlay.ListOptions{})
	if err != nil {
		return nil
	}
	ids := make([]string, len(list))
	for i, c := range list {
		ids[i] = c.ID
	}
	return ids
}

// Branches gives the names of the active branches.
func (s Shelf) Branches() []string {
	list := s.f.branches.Branches(Filter{})
	names := make([]string, len(list))
	for i, b := range list {
		names[i] = b.Name
	}
	return names
}

// Checkpoint opens what the workspace was at an active checkpoint, read-only.
func (s Shelf) Checkpoint(id string) (overlay.Volume, func(), error) {
	return lent(s.f.branches.At(id))
}

// Branch opens the tree of an active branch.
func (s Shelf) Branch(name string) (overlay.Volume, func(), error) {
	return lent(s.f.branches.Volume(name))
}

// Follows implements overlay.Follower: what main ignored at a checkpoint of its own is shown as it is now.
func (v *Volume) Follows() bool {
	return v.key.epoch != 0 && v.m.cfg.Ignored != nil && v.m.cfg.Ignored(v.key.epoch) != nil
}

func lent(v *Volume, err error) (overlay.Volume, func(), error) {
	if err != nil {
		return nil, nil, err
	}
	return v, v.Close, nil
}
