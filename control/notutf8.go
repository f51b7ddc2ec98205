package control

import (
	"strconv"
	"unicode/utf8"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
)

// add notes the bytes of s under pointer if JSON cannot hold them. It makes the map on first use.
func (n *NotUTF8) add(pointer, s string) {
	if utf8.ValidString(s) {
		return
	}
	if *n == nil {
		*n = NotUTF8{}
	}
	(*n)[pointer] = []byte(s)
}

// restore puts the bytes back into *s, if there are any for pointer.
func (n NotUTF8) restore(pointer string, s *string) {
	if b, ok := n[pointer]; ok {
		*s = string(b)
	}
}

// eachDiffPath calls fn with the JSON Pointer and the address of every path of a diff.
func eachDiffPath(d *overlay.Diff, fn func(pointer string, s *string)) {
	for i := range d.Changes {
		at := "/changes/" + strconv.Itoa(i)
		fn(at+"/path", &d.Changes[i].Path)
		if d.Changes[i].OldPath != "" {
			fn(at+"/old_path", &d.Changes[i].OldPath)
		}
	}
}

// eachReconcilePath calls fn with the JSON Pointer and the address of every path of r.
func eachReconcilePath(r *overlay.ReconcileResult, fn func(pointer string, s *string)) {
	each := func(name string, list []string) {
		for i := range list {
			fn("/"+name+"/"+strconv.Itoa(i), &list[i])
		}
	}
	each("created", r.Created)
	each("modified", r.Modified)
	each("deleted", r.Deleted)
	for i := range r.Renamed {
		at := "/renamed/" + strconv.Itoa(i)
		fn(at+"/from", &r.Renamed[i].From)
		fn(at+"/to", &r.Renamed[i].To)
	}
}

// eachMergePath calls fn with the JSON Pointer and the address of every path of m.
func eachMergePath(m *overlay.MergeResult, fn func(pointer string, s *string)) {
	for i := range m.Steps {
		at := "/steps/" + strconv.Itoa(i)
		fn(at+"/path", &m.Steps[i].Path)
		if m.Steps[i].From != "" {
			fn(at+"/from", &m.Steps[i].From)
		}
	}
	for i := range m.Conflicts {
		at, c := "/conflicts/"+strconv.Itoa(i), &m.Conflicts[i]
		fn(at+"/path", &c.Path)
		fn(at+"/ours", &c.Ours)
		fn(at+"/theirs", &c.Theirs)
		fn(at+"/detail", &c.Detail)
	}
}

// NewDiffReply gives d's wire form.
func NewDiffReply(d overlay.Diff) DiffReply {
	r := DiffReply{Diff: d}
	r.Changes = nonNil(r.Changes)
	eachDiffPath(&r.Diff, func(at string, s *string) { r.NotUTF8.add(at, *s) })
	return r
}

// restore puts back what JSON could not hold.
func (r *DiffReply) restore() {
	eachDiffPath(&r.Diff, r.NotUTF8.restore)
}

// NewReconcileReply gives r's wire form.
func NewReconcileReply(in overlay.ReconcileResult) ReconcileReply {
	r := ReconcileReply{ReconcileResult: in}
	r.Created, r.Modified, r.Deleted = nonNil(r.Created), nonNil(r.Modified), nonNil(r.Deleted)
	r.Renamed = nonNil(r.Renamed)
	eachReconcilePath(&r.ReconcileResult, func(at string, s *string) { r.NotUTF8.add(at, *s) })
	return r
}

// restore puts back what JSON could not hold.
func (r *ReconcileReply) restore() {
	eachReconcilePath(&r.ReconcileResult, r.NotUTF8.restore)
}

// nonNil makes an empty list of a nil one, so that JSON shows [] and never null.
func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// NewPromoteReply gives the wire form of a promotion with its patch, which may be "".
func NewPromoteReply(c checkpoint.Checkpoint, patch string) PromoteReply {
	r := PromoteReply{Checkpoint: c, Patch: patch}
	r.NotUTF8.add("/patch", patch)
	return r
}
