package turn

import (
	"encoding/json"
	"slices"

	"github.com/hyperfs/hyperfs/checkpoint"
)

// pageSize is how many messages one page lists. Only the last page of a state may have fewer.
const pageSize = 64

// piece is one JSON value of a state.
type piece struct {
	blob checkpoint.Blob // "" while the store has not kept it
	data json.RawMessage // nil while only the store has it
}

func (p piece) size() int64 {
	if p.data != nil {
		return int64(len(p.data))
	}
	return p.blob.Size()
}

// read gives the value. Nobody may change it.
func (p piece) read(t *checkpoint.Turns) (json.RawMessage, error) {
	if p.data != nil {
		return p.data, nil
	}
	return t.Read(p.blob)
}

// state is a State in pieces. It is never changed: what changes it makes another.
type state struct {
	pages     []checkpoint.Blob // full ones, with the first messages
	tail      []piece           // the messages behind these
	messages  int64             // their size in bytes, all of them
	artifacts []named
	custom    *piece
	bindings  *piece
}

// named is an artifact.
type named struct {
	name string
	data piece
}

func (s *state) count() int { return len(s.pages)*pageSize + len(s.tail) }

// stateOf gives the state that a record names. Of messages it reads the last page alone.
func stateOf(t *checkpoint.Turns, r checkpoint.TurnState) (*state, error) {
	full := r.Messages / pageSize
	s := &state{pages: slices.Clone(r.Pages[:min(full, len(r.Pages))]), messages: r.Bytes}
	for _, p := range r.Pages[len(s.pages):] {
		list, err := t.Page(p)
		if err != nil {
			return nil, err
		}
		for _, b := range list {
			s.tail = append(s.tail, piece{blob: b})
		}
	}
	for _, a := range r.Artifacts {
		s.artifacts = append(s.artifacts, named{a.Name, piece{blob: a.Data}})
		s.messages -= int64(len(a.Name)) + a.Data.Size()
	}
	one := func(b *checkpoint.Blob) *piece {
		if b == nil {
			return nil
		}
		s.messages -= b.Size()
		return &piece{blob: *b}
	}
	s.custom, s.bindings = one(r.Custom), one(r.Bindings)
	return s, nil
}

// change applies an update. What it says of the event is what is new, without the patch of the custom document.
func (s *state) change(t *checkpoint.Turns, u *Update) (*state, UpdateEvent, error) {
	n := *s
	ev := UpdateEvent{MessagesSet: u.SetMessages != nil, Bindings: u.Bindings != nil, Added: len(u.AddMessages)}
	if u.SetMessages != nil {
		n.pages, n.tail, n.messages = nil, nil, 0
		n.add(*u.SetMessages)
	}
	n.add(u.AddMessages)
	if len(u.AddArtifacts) > 0 {
		n.artifacts = slices.Clone(n.artifacts)
		at := make(map[string]int, len(n.artifacts))
		for i, a := range n.artifacts {
			at[a.name] = i
		}
		for _, a := range u.AddArtifacts {
			i, ok := at[a.Name]
			if !ok {
				i = len(n.artifacts)
				at[a.Name] = i
				n.artifacts = append(n.artifacts, named{name: a.Name})
			}
			n.artifacts[i].data = piece{data: a.Data}
			if !slices.Contains(ev.Artifacts, a.Name) {
				ev.Artifacts = append(ev.Artifacts, a.Name)
			}
		}
	}
	if u.Custom != nil {
		n.custom = &piece{data: u.Custom}
	}
	if u.CustomPatch != nil {
		before, err := n.document(t)
		if err != nil {
			return nil, ev, err
		}
		after, err := applyPatch(before, u.CustomPatch)
		if err != nil {
			return nil, ev, err
		}
		n.custom = nil
		if after != nil {
			n.custom = &piece{data: after}
		}
	}
	switch {
	case u.Bindings == nil:
	case string(u.Bindings) == "null":
		n.bindings = nil
	default:
		n.bindings = &piece{data: u.Bindings}
	}
	ev.Messages = n.count()
	return &n, ev, nil
}

func (s *state) add(list []json.RawMessage) {
	s.tail = slices.Grow(slices.Clip(s.tail), len(list)) // what others have of it stays theirs
	for _, m := range list {
		s.tail = append(s.tail, piece{data: m})
		s.messages += int64(len(m))
	}
}

// document gives the custom document, nil if there is none.
func (s *state) document(t *checkpoint.Turns) (json.RawMessage, error) {
	if s.custom == nil {
		return nil, nil
	}
	return s.custom.read(t)
}

// patch gives the patch of the custom document that leads from s to n, by an update; nil if it has not changed it. The first of a turn replaces all.
func (s *state) patch(t *checkpoint.Turns, n *state, u *Update, first bool) (json.RawMessage, error) {
	if u.Custom == nil && u.CustomPatch == nil {
		return nil, nil
	}
	if u.Custom == nil && !first {
		return u.CustomPatch, nil
	}
	after, err := n.document(t)
	if err != nil || first {
		return replaced(after), err
	}
	before, err := s.document(t)
	return comparePatch(before, after), err
}

// kept keeps what the store does not have yet, with all of it also the custom document and the bindings, which later updates may replace. The caller uses the
// blobs (checkpoint.Turns.Using).
func (s *state) kept(t *checkpoint.Turns, all bool) (*state, error) {
	n := *s
	n.tail, n.artifacts = slices.Clone(s.tail), slices.Clone(s.artifacts)
	n.custom, n.bindings = copied(s.custom), copied(s.bindings)
	var missing []*piece
	want := func(p *piece) {
		if p != nil && p.blob == "" {
			missing = append(missing, p)
		}
	}
	for i := range n.tail {
		want(&n.tail[i])
	}
	for i := range n.artifacts {
		want(&n.artifacts[i].data)
	}
	if all {
		want(n.custom)
		want(n.bindings)
	}
	return &n, keep(t, missing)
}

// save keeps what the store does not have yet, and gives what the record names. The caller uses the blobs.
func (s *state) save(t *checkpoint.Turns) (r checkpoint.TurnState, err error) {
	n, err := s.kept(t, true)
	if err != nil {
		return r, err
	}
	pages, err := n.paged(t)
	if err != nil {
		return r, err
	}
	r = checkpoint.TurnState{Messages: n.count(), Pages: pages, Bytes: n.messages}
	for _, a := range n.artifacts {
		r.Artifacts = append(r.Artifacts, checkpoint.TurnArtifact{Name: a.name, Data: a.data.blob})
		r.Bytes += int64(len(a.name)) + a.data.size()
	}
	one := func(p *piece) *checkpoint.Blob {
		if p == nil {
			return nil
		}
		r.Bytes += p.size()
		return &p.blob
	}
	r.Custom, r.Bindings = one(n.custom), one(n.bindings)
	return r, nil
}

func copied(p *piece) *piece {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// keep keeps pieces, and notes their names in them.
func keep(t *checkpoint.Turns, pieces []*piece) error {
	if len(pieces) == 0 {
		return nil
	}
	list := make([][]byte, len(pieces))
	for i, p := range pieces {
		list[i] = p.data
	}
	names, err := t.Keep(list...)
	if err != nil {
		return err
	}
	for i, p := range pieces {
		p.blob = names[i]
	}
	return nil
}

// paged keeps pages of the messages that are in none, and gives all pages.
func (s *state) paged(t *checkpoint.Turns) ([]checkpoint.Blob, error) {
	if len(s.tail) == 0 {
		return s.pages, nil
	}
	var texts [][]byte
	for some := range slices.Chunk(s.tail, pageSize) {
		names := make([]checkpoint.Blob, len(some))
		for i, p := range some {
			names[i] = p.blob
		}
		text, err := checkpoint.EncodePage(names)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	more, err := t.Keep(texts...)
	return append(slices.Clip(s.pages), more...), err
}

// load gives the whole state, which is the caller's.
func (s *state) load(t *checkpoint.Turns, conversation string) (*State, error) {
	out := &State{Conversation: conversation, Messages: make([]json.RawMessage, 0, s.count()), Artifacts: make([]Artifact, 0, len(s.artifacts))}
	read := func(p piece) (json.RawMessage, error) {
		if p.data != nil {
			return slices.Clone(p.data), nil
		}
		return t.Read(p.blob)
	}
	message := func(p piece) error {
		m, err := read(p)
		out.Messages = append(out.Messages, m)
		return err
	}
	for _, p := range s.pages {
		list, err := t.Page(p)
		if err != nil {
			return nil, err
		}
		for _, b := range list {
			if err := message(piece{blob: b}); err != nil {
				return nil, err
			}
		}
	}
	for _, p := range s.tail {
		if err := message(p); err != nil {
			return nil, err
		}
	}
	for _, a := range s.artifacts {
		data, err := read(a.data)
		if err != nil {
			return nil, err
		}
		out.Artifacts = append(out.Artifacts, Artifact{a.name, data})
	}
	var err error
	if s.custom != nil {
		out.Custom, err = read(*s.custom)
	}
	if s.bindings != nil && err == nil {
		out.Bindings, err = read(*s.bindings)
	}
	return out, err
}
