//go:build linux

package branch

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// Main is the name of the live tree among the branches. No branch can have it.
const Main = "main"

// ForkOptions are the tags of a new branch. Those that are empty are the parent's.
type ForkOptions struct {
	Subagent string `json:"subagent,omitempty"`
	Agent    string `json:"agent,omitempty"`
	Message  string `json:"message,omitempty"`
}

// Filter chooses branches. An empty field lets everything through.
type Filter struct {
	Parent          string
	Subagent        string
	Agent           string
	IncludeInactive bool // also merged and dropped ones
}

// checkBranchName refuses what can't be a directory's name, or would not look like one.
func checkBranchName(name string) error {
	bad := func(why string) error {
		return errs.New(errs.Usage, "fork", name, "%s", why).WithHint("a name has 1 to 255 bytes of printable UTF-8, without a slash")
	}
	switch {
	case name == "" || len(name) > nameMax:
		return bad("a branch's name has 1 to 255 bytes")
	case name == "." || name == "..":
		return bad("the name means a directory")
	case name == Main:
		return bad("that is the name of the live tree")
	case !utf8.ValidString(name):
		return bad("the name is not UTF-8")
	case strings.ContainsFunc(name, func(r rune) bool { return r == '/' || !unicode.IsPrint(r) }):
		return bad("the name has a slash or a character that can't be printed")
	}
	return nil
}

// Fork makes a branch of the state at a checkpoint: of main, with "" for its newest one, or of a branch. It costs the same whatever the size of
// the tree. Errors: USAGE for a bad name, BUSY for one that is taken, NOT_FOUND, ROLLBACK for a checkpoint that is not active.
func (m *Manager) Fork(ctx context.Context, name, from string, o ForkOptions) (checkpoint.Branch, error) {
	leave, err := m.enter("fork", true)
	if err != nil {
		return checkpoint.Branch{}, err
	}
	defer leave()
	if err := checkBranchName(name); err != nil {
		return checkpoint.Branch{}, err
	}
	if err := ctx.Err(); err != nil {
		return checkpoint.Branch{}, err
	}
	now := time.Now()
	b := checkpoint.Branch{
		ID: newID("branch_"), Name: name, Subagent: o.Subagent, Agent: o.Agent, Message: o.Message,
		CreatedAt: now, UpdatedAt: now, Status: checkpoint.BranchActive,
	}
	if b.Num, err = m.next(); err == nil {
		b.Layer, err = m.next()
	}
	if err != nil {
		return checkpoint.Branch{}, errs.Ensure("fork", name, err)
	}
	if from != "" && m.knows(from) {
		err = m.forkBranch(&b, from)
	} else {
		err = m.forkMain(&b, from)
	}
	if err != nil {
		m.takeBack(&b)
		return checkpoint.Branch{}, errs.Ensure("fork", name, err)
	}
	crash.Point("branch-forked")
	b.Children = []string{}
	return b, nil
}

// forkMain stands the new layer on what main was.
func (m *Manager) forkMain(b *checkpoint.Branch, from string) error {
	return m.cfg.Pin(from, func(tx *checkpoint.Tx, c checkpoint.Checkpoint) error {
		b.Parent, b.Epoch = Main, c.Epoch
		return m.add(tx, b, checkpoint.Layer{Num: b.Layer, Epoch: c.Epoch}, c)
	})
}

// forkBranch stands the new layer on that of a branch's checkpoint.
func (m *Manager) forkBranch(b *checkpoint.Branch, from string) error {
	m.mu.Lock()
	have := m.checkpoints[from]
	if have == nil {
		m.mu.Unlock()
		return noCheckpoint("fork", from)
	}
	c := *have
	if parent := m.branches[c.BranchNum]; parent != nil {
		b.Parent, b.ParentNum, b.Epoch = parent.Name, parent.Num, parent.Epoch
	}
	m.mu.Unlock()
	b.Fork = c.Layer
	if err := usable("fork", &c.Checkpoint); err != nil {
		return err
	}
	return m.store.Update(func(tx *checkpoint.Tx) error {
		return m.add(tx, b, checkpoint.Layer{Num: b.Layer, Parent: c.Layer, Epoch: b.Epoch}, c.Checkpoint)
	})
}

// add commits a branch, and makes it known: before the commit, as its epoch must be pinned by then.
func (m *Manager) add(tx *checkpoint.Tx, b *checkpoint.Branch, l checkpoint.Layer, from checkpoint.Checkpoint) error {
	b.ForkPoint = from.ID
	b.Subagent, b.Agent = cmp.Or(b.Subagent, from.Subagent), cmp.Or(b.Agent, from.Agent)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.active[b.Name] != nil {
		return errs.New(errs.Busy, "fork", b.Name, "a branch has this name already").WithHint("choose another one, or drop that branch")
	}
	have := *b
	m.active[b.Name], m.branches[b.Num], m.layers[l.Num] = &have, &have, l
	if err := tx.PutLayer(l); err != nil {
		return err
	}
	return tx.PutBranch(*b)
}

// takeBack forgets a branch that could not be committed.
func (m *Manager) takeBack(b *checkpoint.Branch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.branches[b.Num]; have != nil {
		delete(m.branches, b.Num)
		delete(m.layers, b.Layer)
		if v := m.volumes[volumeKey{branch: b.Num}]; v != nil { // somebody was quick
			delete(m.volumes, v.key)
			v.retire()
		}
		if m.active[b.Name] == have {
			delete(m.active, b.Name)
		}
	}
}

// Branches gives the branches that a filter lets through, in the order in which they were made.
func (m *Manager) Branches(f Filter) []checkpoint.Branch {
	m.mu.Lock()
	defer m.mu.Unlock()
	children := m.childrenLocked()
	list := []checkpoint.Branch{}
	for _, b := range m.branches {
		if (f.IncludeInactive || b.Status == checkpoint.BranchActive) &&
			(f.Parent == "" || b.Parent == f.Parent) &&
			(f.Subagent == "" || b.Subagent == f.Subagent) &&
			(f.Agent == "" || b.Agent == f.Agent) {
			list = append(list, described(b, children))
		}
	}
	slices.SortFunc(list, func(a, b checkpoint.Branch) int { return cmp.Compare(a.Num, b.Num) })
	return list
}

// childrenOf gives those of one branch. The caller holds mu.
func (m *Manager) childrenOf(num uint64) map[uint64][]string {
	children := map[uint64][]string{}
	for _, b := range m.active {
		if b.ParentNum == num {
			children[num] = append(children[num], b.Name)
		}
	}
	return children
}

// childrenLocked gives the names of active branches by the number of what they were forked from. The caller holds mu.
func (m *Manager) childrenLocked() map[uint64][]string {
	children := map[uint64][]string{}
	for _, b := range m.active {
		children[b.ParentNum] = append(children[b.ParentNum], b.Name)
	}
	return children
}

func described(b *checkpoint.Branch, children map[uint64][]string) checkpoint.Branch {
	c := *b
	c.Children = append([]string{}, children[b.Num]...)
	slices.Sort(c.Children)
	return c
}

// Get gives a branch: the active one of that name, or else the last one that had it. NOT_FOUND says that there is none.
func (m *Manager) Get(name string) (checkpoint.Branch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.active[name]
	if b == nil {
		b = m.lastEnded(name)
	}
	if b == nil {
		return checkpoint.Branch{}, noBranch("find branch", name)
	}
	return described(b, m.childrenOf(b.Num)), nil
}

// lastEnded gives the last branch of a name, which no active one has. The caller holds mu.
func (m *Manager) lastEnded(name string) (b *checkpoint.Branch) {
	for _, o := range m.branches {
		if o.Name == name && (b == nil || o.Num > b.Num) {
			b = o
		}
	}
	return b
}

// Lineage gives the branch and those that it was forked from, the oldest first; main is not among them.
func (m *Manager) Lineage(name string) ([]checkpoint.Branch, error) {
	b, err := m.Get(name)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	children := m.childrenLocked()
	line := []checkpoint.Branch{b}
	for p := m.branches[b.ParentNum]; p != nil && len(line) <= len(m.branches); p = m.branches[p.ParentNum] {
		line = append(line, described(p, children))
	}
	slices.Reverse(line)
	return line, nil
}

// Children gives the active branches that were forked from a branch, or from main.
func (m *Manager) Children(name string) ([]checkpoint.Branch, error) {
	var num uint64
	if name != Main {
		b, err := m.Get(name)
		if err != nil {
			return nil, err
		}
		num = b.Num
	}
	return slices.DeleteFunc(m.Branches(Filter{}), func(b checkpoint.Branch) bool { return b.ParentNum != num }), nil
}

// Drop ends a branch. What others need of it stays. BUSY says that active branches were forked from it.
func (m *Manager) Drop(ctx context.Context, name string) error {
	return m.end(ctx, "drop", name, checkpoint.BranchDropped)
}

// Merged ends a branch whose changes are in its parent now.
func (m *Manager) Merged(ctx context.Context, name string) error {
	return m.end(ctx, "merge", name, checkpoint.BranchMerged)
}

func (m *Manager) end(ctx context.Context, op, name string, status checkpoint.BranchStatus) error {
	leave, err := m.enter(op, false) // alone, so that nobody forks from it meanwhile
	if err != nil {
		return err
	}
	defer leave()
	defer m.store.Urgent()()
	if err := ctx.Err(); err != nil {
		return err
	}
	v, err := m.hold(op, m.live(op, name))
	if err != nil {
		return err
	}
	defer m.giveBack(v)
	b, err := m.Get(name)
	if err != nil {
		return err
	}
	if len(b.Children) > 0 {
		return errs.New(errs.Busy, op, name, "branches were forked from it: %s", strings.Join(b.Children, ", ")).
			WithHint("drop or merge these first")
	}
	b.Status, b.UpdatedAt, b.Children = status, time.Now(), nil
	v.mu.Lock()
	err = m.commitEnd(b)
	if err == nil {
		v.gone = true
		v.closeState()
	}
	v.mu.Unlock()
	if err != nil {
		return errs.Ensure(op, name, err)
	}
	crash.Point("branch-dropped")
	m.collectSoon()
	return nil
}

// commitEnd commits the end of a branch and of its checkpoints. The caller holds admin alone.
func (m *Manager) commitEnd(b checkpoint.Branch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ended []checkpoint.BranchCheckpoint
	for _, c := range m.checkpoints {
		if c.BranchNum == b.Num && c.Status == checkpoint.Active {
			next := *c
			next.Status, next.UpdatedAt = checkpoint.Disposed, b.UpdatedAt
			ended = append(ended, next)
		}
	}
	err := m.store.Update(func(tx *checkpoint.Tx) error {
		for _, c := range ended {
			if err := tx.PutBranchCheckpoint(c); err != nil {
				return err
			}
		}
		return tx.PutBranch(b)
	})
	if err != nil {
		return err
	}
	for _, c := range ended {
		*m.checkpoints[c.ID] = c
	}
	*m.branches[b.Num] = b
	delete(m.active, b.Name)
	delete(m.volumes, volumeKey{branch: b.Num})
	return nil
}
