package control

import (
	"context"
	"net/http"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// DeclareOptions declare what a tool writes.
type DeclareOptions struct {
	Tool       string        `json:"tool"`
	Checkpoint string        `json:"checkpoint,omitempty"` // the contract ends with this one; "" means that it holds until the store is removed
	Outputs    []OutputsPath `json:"outputs"`
}

// OutputsPath is one path that a tool may write.
type OutputsPath struct {
	Path     string `json:"path"`               // workspace-relative, exact: no pattern
	Optional bool   `json:"optional,omitempty"` // it is no failure if the tool doesn't write it
}

// OutputsReply is the answer to GET /v1/outputs, oldest first.
type OutputsReply struct {
	Contracts []overlay.OutputContract `json:"contracts"`
}

// TrackOptions name what is protected although it is ignored.
type TrackOptions struct {
	Paths []string `json:"paths"` // workspace-relative, exact
}

// TrackReply is all that is tracked, sorted.
type TrackReply struct {
	Paths []string `json:"paths"`
}

// contracts gives what takes them, or UNSUPPORTED.
func (s *Server) contracts(op string) (overlay.Contracts, error) {
	if c, ok := s.workspace.(overlay.Contracts); ok {
		return c, nil
	}
	return nil, errs.New(Unsupported, op, "", "the backend %s takes no contracts", s.workspace.Status().Backend)
}

func declareOutputs(s *Server, ctx context.Context, _ *call, o *DeclareOptions) (r overlay.OutputContract, err error) {
	c, err := s.contracts("declare outputs")
	if err != nil {
		return r, err
	}
	contract := overlay.OutputContract{Tool: o.Tool, Checkpoint: o.Checkpoint}
	for _, p := range o.Outputs {
		contract.Outputs = append(contract.Outputs, overlay.Output{Path: p.Path, Optional: p.Optional})
	}
	return c.DeclareOutputs(ctx, contract)
}

func outputs(s *Server, ctx context.Context, c *call, _ *none) (r OutputsReply, err error) {
	k, err := s.contracts("outputs")
	if err != nil {
		return r, err
	}
	list, err := k.Outputs(ctx, c.query["checkpoint"])
	r.Contracts = nonNil(list)
	return r, err
}

func track(s *Server, ctx context.Context, _ *call, o *TrackOptions) (r TrackReply, err error) {
	c, err := s.contracts("track")
	if err != nil {
		return r, err
	}
	all, err := c.Track(ctx, o.Paths)
	r.Paths = nonNil(all)
	return r, err
}

func tracked(s *Server, _ context.Context, _ *call, _ *none) (r TrackReply, err error) {
	c, err := s.contracts("track")
	if err != nil {
		return r, err
	}
	r.Paths = nonNil(c.Tracked())
	return r, nil
}

// DeclareOutputs says what a tool writes, although it may be ignored: these paths are protected, and strict mode lets them through.
func (c *Client) DeclareOutputs(ctx context.Context, o DeclareOptions) (r overlay.OutputContract, err error) {
	return r, c.call(ctx, "declare outputs", http.MethodPost, "/v1/outputs", nil, &o, &r)
}

// Outputs gives the contracts for a checkpoint, those for all checkpoints among them, oldest first; "" gives every one.
func (c *Client) Outputs(ctx context.Context, checkpoint string) ([]overlay.OutputContract, error) {
	var r OutputsReply
	err := c.call(ctx, "outputs", http.MethodGet, "/v1/outputs", values("checkpoint", checkpoint), nil, &r)
	return r.Contracts, err
}

// Track protects exact paths although they are ignored, and gives all that are tracked.
func (c *Client) Track(ctx context.Context, paths []string) ([]string, error) {
	var r TrackReply
	err := c.call(ctx, "track", http.MethodPost, "/v1/track", nil, &TrackOptions{paths}, &r)
	return r.Paths, err
}

// Tracked gives the paths that are tracked, sorted.
func (c *Client) Tracked(ctx context.Context) ([]string, error) {
	var r TrackReply
	err := c.call(ctx, "track", http.MethodGet, "/v1/track", nil, nil, &r)
	return r.Paths, err
}
