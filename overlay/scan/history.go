package scan

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/oklog/ulid/v2"
)

// idPrefix begins every checkpoint ID.
const idPrefix = "ckpt_"

func newID() string { return idPrefix + ulid.Make().String() }

// createdByRollback marks undo checkpoints.
const createdByRollback = "rollback"

// history is the list of all checkpoints.
type history struct {
	mu          sync.RWMutex // guards what follows
	checkpoints map[string]checkpoint.Checkpoint
	seq         uint64
	head        string // the checkpoint that the live state comes from
	session     string // name of this run
}

func isActive(c *checkpoint.Checkpoint) bool   { return c.Status == checkpoint.Active }
func isInactive(c *checkpoint.Checkpoint) bool { return !isActive(c) }

// load takes over what the store has.
func (h *history) load(all []checkpoint.Checkpoint, head, session string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checkpoints = map[string]checkpoint.Checkpoint{}
	h.head, h.session = head, session
	for _, c := range all {
		h.checkpoints[c.ID] = c
		h.seq = max(h.seq, c.Seq)
	}
}

// put takes over new versions of checkpoints, and what the live state comes from now.
func (h *history) put(head string, list ...checkpoint.Checkpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.head = head
	for _, c := range list {
		h.checkpoints[c.ID] = c
		h.seq = max(h.seq, c.Seq)
	}
}

func (h *history) remove(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.checkpoints, id)
}

// list gives the checkpoints that keep asks for, oldest first.
func (h *history) list(keep func(*checkpoint.Checkpoint) bool) []checkpoint.Checkpoint {
	h.mu.RLock()
	defer h.mu.RUnlock()
	list := []checkpoint.Checkpoint{}
	for _, c := range h.checkpoints {
		if keep(&c) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b checkpoint.Checkpoint) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

func (h *history) current() string {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.head
}

func (h *history) get(id string) (checkpoint.Checkpoint, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	c, ok := h.checkpoints[id]
	return c, ok
}

// newest gives the checkpoint that the live state comes from, and where that is not active any more the nearest before it that is. Where there is
// none, it is the newest one of all.
func (h *history) newest() (checkpoint.Checkpoint, bool) {
	line := h.lineage(h.current())
	for _, c := range slices.Backward(line) {
		if isActive(&c) && c.CreatedBy != createdByRollback {
			return c, true
		}
	}
	return last(h.list(func(c *checkpoint.Checkpoint) bool { return isActive(c) && c.CreatedBy != createdByRollback }))
}

// undoPoint gives the checkpoint of the state before the last rollback.
func (h *history) undoPoint() (checkpoint.Checkpoint, bool) {
	return last(h.list(func(c *checkpoint.Checkpoint) bool { return isActive(c) && c.CreatedBy == createdByRollback }))
}

func last(list []checkpoint.Checkpoint) (checkpoint.Checkpoint, bool) {
	if len(list) == 0 {
		return checkpoint.Checkpoint{}, false
	}
	return list[len(list)-1], true
}

// fresh makes the record of a new checkpoint.
func (h *history) fresh(o overlay.SnapshotOptions, max int) (checkpoint.Checkpoint, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if o.ID == "" {
		o.ID = newID()
	} else if err := h.checkID(o.ID); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	if o.Parent == "" {
		o.Parent = h.head
	} else if p, ok := h.checkpoints[o.Parent]; !ok {
		return checkpoint.Checkpoint{}, errs.New(errs.NotFound, "snapshot", o.Parent, "there is no such parent")
	} else if !isActive(&p) {
		return checkpoint.Checkpoint{}, errs.New(errs.Disposed, "snapshot", o.Parent, "the parent is %s", p.Status)
	}
	active := 0
	for _, c := range h.checkpoints {
		if isActive(&c) {
			active++
		}
	}
	if active >= max {
		return checkpoint.Checkpoint{}, errs.New(errs.Capacity, "snapshot", "", "there are %d active checkpoints, and no more are allowed", active).
			WithHint("drop or promote some, or allow more with --max-checkpoints")
	}
	now := time.Now()
	return checkpoint.Checkpoint{
		ID: o.ID, Parent: o.Parent, Branch: cmp.Or(o.Branch, "main"), Subagent: o.Subagent, Agent: o.Agent,
		CreatedBy: cmp.Or(o.CreatedBy, "snapshot"), CreatedAt: now, UpdatedAt: now, Message: o.Message,
		Status: checkpoint.Active, Session: h.session, Seq: h.seq + 1, Epoch: checkpoint.Epoch(h.seq + 1),
	}, nil
}

// checkID refuses what Reserve cannot have given. The caller holds h.mu.
func (h *history) checkID(id string) error {
	if _, err := ulid.ParseStrict(strings.TrimPrefix(id, idPrefix)); err != nil || !strings.HasPrefix(id, idPrefix) {
		return errs.New(errs.Usage, "snapshot", id, "the ID is not %s and 26 characters of a ULID", idPrefix)
	}
	if _, ok := h.checkpoints[id]; ok {
		return errs.New(errs.Usage, "snapshot", id, "a checkpoint has this ID already")
	}
	return nil
}

// lineage gives a checkpoint and its ancestors, oldest first, as far back as there are records.
func (h *history) lineage(id string) []checkpoint.Checkpoint {
	h.mu.RLock()
	defer h.mu.RUnlock()
	var line []checkpoint.Checkpoint
	for c, ok := h.checkpoints[id]; ok && len(line) <= len(h.checkpoints); c, ok = h.checkpoints[c.Parent] {
		line = append(line, c)
	}
	slices.Reverse(line)
	return line
}

func (h *history) nextSeq() uint64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.seq + 1
}
