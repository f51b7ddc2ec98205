package checkpoint

import "time"

type BranchStatus string

const (
	BranchActive  BranchStatus = "active"
	BranchMerged  BranchStatus = "merged"
	BranchDropped BranchStatus = "dropped"
)

type Branch struct {
	ID        string       `json:"id"`
	Num       uint64       `json:"num"` // never used twice
	Name      string       `json:"name"`
	Parent    string       `json:"parent"`               // name of the branch that it was forked from, or main
	ParentNum uint64       `json:"parent_num,omitempty"` // number of that branch; 0 is main
	ForkPoint string       `json:"fork_point"`           // the checkpoint that it was forked from
	Epoch     Epoch        `json:"epoch"`                // of main, which is what lies below all its layers
	Fork      uint64       `json:"fork_layer,omitempty"` // the layer that it was forked from; 0 where that is main
	Layer     uint64       `json:"layer"`                // the one that its changes go to
	Head      string       `json:"head,omitempty"`       // the checkpoint of its own that its state comes from
	Subagent  string       `json:"subagent,omitempty"`
	Agent     string       `json:"agent,omitempty"`
	Message   string       `json:"message,omitempty"`
	CreatedAt time.Time    `json:"created_at"`
	UpdatedAt time.Time    `json:"updated_at"`
	Status    BranchStatus `json:"status"`
	Children  []string     `json:"children"` // names of active branches that were forked from it; found out when it is asked for
}
