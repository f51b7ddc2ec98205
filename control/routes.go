package control

import (
	"context"
	"net/http"
	"reflect"
)

// route is one call of the API. The mux and the OpenAPI document are made from it.
type route struct {
	method, path string
	op           string // operationId, and the name of the call in errors and logs
	doc          string // one line
	query        []param
	body         reflect.Type // nil: no body
	reply        reflect.Type // nil: not JSON
	media        string       // of a reply that is not JSON
	large        bool         // its body may have up to maxLargeBody bytes
	serve        handler
}

// handler answers a request. An error that it gives becomes the reply, provided that it has written nothing.
type handler func(s *Server, w http.ResponseWriter, c *call) error

// call is one request, checked.
type call struct {
	*http.Request
	id    string // the {id}, {name} or {kind} of the path
	query query
	body  any // a pointer to the route's body type
}

// jsonRoute makes a route from a function of typed request and reply.
func jsonRoute[B, R any](method, path, op, doc string, fn func(s *Server, ctx context.Context, c *call, body *B) (R, error), query ...param) route {
	r := route{method: method, path: path, op: op, doc: doc, query: query, reply: reflect.TypeFor[R]()}
	if t := reflect.TypeFor[B](); t != reflect.TypeFor[none]() {
		r.body = t
	}
	r.serve = func(s *Server, w http.ResponseWriter, c *call) error {
		body, _ := c.body.(*B)
		reply, err := fn(s, c.Context(), c, body)
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, &reply)
	}
	return r
}

// takesLarge lets a route have large bodies.
func takesLarge(r route) route {
	r.large = true
	return r
}

// streamRoute makes a route that writes something else than JSON.
func streamRoute(path, op, doc, media string, serve handler, query ...param) route {
	return route{method: http.MethodGet, path: path, op: op, doc: doc, query: query, media: media, serve: serve}
}

// Query parameters that more than one call has.
var (
	paramFrom = param{name: "from", doc: "ID of the older checkpoint; the newest one if left out"}
	paramTo   = param{name: "to", doc: "ID of the newer checkpoint; what is there now if left out"}
	paramIn   = param{name: "branch", doc: "the branch that it is about; main if left out"}
)

// routes is the API.
var routes = []route{
	jsonRoute(http.MethodGet, "/v1/status", "status", "One screen of state.", status),
	jsonRoute(http.MethodGet, "/v1/diagnostics", "diagnostics", "Everything that the workspace knows about itself; asking runs no scan.", diagnostics),
	jsonRoute(http.MethodGet, "/v1/stats", "stats", "What the kernel has asked for, by kind of request with how long each took, and what the process has used.", stats),
	streamRoute("/v1/debug/pprof/{kind}", "pprof", "A profile of the daemon for `go tool pprof`: profile (of the CPU), heap, allocs, goroutine, threadcreate, mutex, block; or a trace for `go tool trace`.", mediaProfile, profile,
		param{name: "seconds", doc: "how long profile, mutex, block and trace watch: 1 to 300; 5 if left out"},
		param{name: "text", flag: true, doc: "give text for people, where there is one"}),
	jsonRoute(http.MethodGet, "/v1/version", "version", "What was built from what, and the features found.", version),
	jsonRoute(http.MethodPost, "/v1/checkpoints", "snapshot", "Makes a checkpoint.", snapshot),
	jsonRoute(http.MethodGet, "/v1/checkpoints", "list", "Lists checkpoints, oldest first.", list,
		param{name: "branch", doc: "only of this branch"},
		param{name: "subagent", doc: "only of this subagent"},
		param{name: "agent", doc: "only of this agent"},
		param{name: "all", flag: true, doc: "also promoted and disposed ones"}),
	jsonRoute(http.MethodPost, "/v1/checkpoints/reserve", "reserve", "Gives an ID that a later snapshot may use.", reserve),
	jsonRoute(http.MethodGet, "/v1/checkpoints/{id}", "show", "One checkpoint with its lineage and children.", show),
	jsonRoute(http.MethodDelete, "/v1/checkpoints/{id}", "drop", "Forgets a checkpoint. The workspace stays as it is.", drop),
	jsonRoute(http.MethodPost, "/v1/checkpoints/{id}/rollback", "rollback", "Puts the workspace back to a checkpoint.", rollback),
	jsonRoute(http.MethodPost, "/v1/checkpoints/{id}/promote", "promote", "Accepts what is there now and frees the preimages. If the patch fails, the checkpoint stays active.", promote),
	jsonRoute(http.MethodPost, "/v1/checkpoints/{id}/rehydrate", "rehydrate", "Takes over a checkpoint that an earlier daemon left, after it is proved that a rollback to it would work.", rehydrate),
	jsonRoute(http.MethodGet, "/v1/recover", "recover", "Lists the checkpoints that earlier daemons left, and says which can be rehydrated.", recoverable),
	jsonRoute(http.MethodPost, "/v1/undo", "undo", "Undoes the last rollback.", undo, paramIn),
	jsonRoute(http.MethodGet, "/v1/diff", "diff", "What differs between two checkpoints, or between one and now.", diff,
		paramIn, paramFrom, paramTo, param{name: "expand", flag: true, doc: "list what is below a new directory too"}),
	streamRoute("/v1/patch", "patch", "The same as a patch that `git apply` takes. It is complete if the status is 200.", mediaPatch, patch, paramIn, paramFrom, paramTo),
	jsonRoute(http.MethodGet, "/v1/reconcile", "reconcile", "Created, modified, deleted and renamed paths since a checkpoint.", reconcile,
		paramIn, param{name: "checkpoint", doc: "ID; the newest one if left out"}),
	jsonRoute(http.MethodGet, "/v1/heads", "heads", "The newest active checkpoint of each branch, or of each subagent.", heads,
		param{name: "by", doc: "branch, which is the default, or subagent"},
		param{name: "branch", doc: "only of this branch"},
		param{name: "subagent", doc: "only of this subagent"},
		param{name: "agent", doc: "only of this agent"},
		param{name: "all", flag: true, doc: "also promoted and disposed ones"}),
	jsonRoute(http.MethodPost, "/v1/branches", "fork", "Makes a branch.", fork),
	jsonRoute(http.MethodGet, "/v1/branches", "branches", "Lists branches, oldest first.", branches,
		param{name: "all", flag: true, doc: "also merged and dropped ones"}),
	jsonRoute(http.MethodGet, "/v1/branches/{name}", "branch", "One branch, and its checkpoints.", branch),
	jsonRoute(http.MethodDelete, "/v1/branches/{name}", "drop_branch", "Discards a branch with all that it has. No other is touched.", dropBranch),
	jsonRoute(http.MethodPost, "/v1/branches/{name}/merge", "merge", "Makes a branch's changes in its parent, all or none.", merge),
	jsonRoute(http.MethodPost, "/v1/attempts", "begin_attempt", "Makes a checkpoint and begins an attempt. In main, and in each branch, there is one at a time.", beginAttempt),
	jsonRoute(http.MethodGet, "/v1/attempts", "attempts", "Lists the attempts that are under way, oldest first.", attempts),
	jsonRoute(http.MethodPost, "/v1/attempts/{id}/end", "end_attempt", "Ends an attempt: after a success says what has changed, after a failure rolls back.", endAttempt),
	jsonRoute(http.MethodDelete, "/v1/attempts/{id}", "abandon_attempt", "Gives an attempt up. The files stay as they are, and the checkpoint stays active.", abandonAttempt),
	jsonRoute(http.MethodPost, "/v1/turns", "begin_turn", "Begins a turn of a conversation. In main, and in each branch, there is one at a time.", beginTurn),
	jsonRoute(http.MethodGet, "/v1/turns", "turns", "Lists turns, in the order in which they began.", listTurns,
		param{name: "conversation", doc: "only of this one"},
		param{name: "status", doc: "only pending, completed, failed or aborted ones"},
		param{name: "limit", doc: "a number: only the newest ones"}),
	jsonRoute(http.MethodGet, "/v1/turns/{id}", "turn", "One turn.", showTurn,
		param{name: "wait", doc: "a duration, as 30s, of ten minutes at most: while it is pending, wait that long for it to end"}),
	jsonRoute(http.MethodGet, "/v1/turns/{id}/state", "turn_state", "The state of a completed turn, or what a pending one has so far.", turnState),
	takesLarge(jsonRoute(http.MethodPost, "/v1/turns/{id}/update", "update_turn", "Changes the state of a pending turn, all or nothing.", updateTurn)),
	takesLarge(jsonRoute(http.MethodPost, "/v1/turns/{id}/end", "end_turn", "Ends a turn: a completed one becomes a checkpoint with its state, the files of any other go back. One that was aborted is no error.", endTurn)),
	jsonRoute(http.MethodPost, "/v1/turns/{id}/abort", "abort_turn", "Aborts a pending turn; one that has ended stays as it is.", abortTurn),
	streamRoute("/v1/turns/{id}/events", "turn_events", "What becomes of one turn as server-sent events: first how it is, last that it is settled.", mediaEvents, eventsOfTurn),
	streamRoute("/v1/turns/events", "turns_events", "The events of turns as server-sent events: first one for each that is under way.", mediaEvents, eventsOfTurns,
		param{name: "conversation", doc: "only of this one"}),
	jsonRoute(http.MethodPost, "/v1/turns/collect", "collect_turns", "Frees what old turns have.", collectTurns),
	jsonRoute(http.MethodGet, "/v1/conversations", "conversations", "Lists conversations, by name.", conversations),
	jsonRoute(http.MethodDelete, "/v1/conversations/{name}", "delete_conversation", "Forgets all turns of a conversation, and their checkpoints. The files stay as they are.", deleteConversation),
	jsonRoute(http.MethodPost, "/v1/branches/{name}/mount", "mount_branch", "Shows a branch at a path of its own too, for a user who can't make bind mounts.", mountBranch),
	jsonRoute(http.MethodPost, "/v1/outputs", "declare_outputs", "Declares which paths a tool writes, although they may be ignored.", declareOutputs),
	jsonRoute(http.MethodGet, "/v1/outputs", "outputs", "Lists what tools have been declared to write, oldest first.", outputs,
		param{name: "checkpoint", doc: "only what holds for this one"}),
	jsonRoute(http.MethodPost, "/v1/track", "track", "Protects exact paths although they are ignored.", track),
	jsonRoute(http.MethodGet, "/v1/track", "tracked", "Lists the paths that are tracked.", tracked),
	jsonRoute(http.MethodPost, "/v1/gc", "gc", "Frees what nothing refers to.", gc),
	jsonRoute(http.MethodPost, "/v1/fsck", "fsck", "Proves the invariants of the store.", fsck,
		param{name: "deep", flag: true, doc: "read every preimage too"}),
	jsonRoute(http.MethodPost, "/v1/unmount", "unmount", "Unmounts and ends the daemon. The reply comes when the store is free.", unmount),
	streamRoute("/v1/events", "events", "Changes of state as server-sent events, from now on. A `lost` event says how many did not fit.", mediaEvents, events),
	streamRoute("/openapi.json", "openapi", "This document.", mediaJSON, openapi),
}

const (
	mediaJSON   = "application/json"
	mediaPatch  = "text/x-diff"
	mediaEvents = "text/event-stream"

	mediaProfile = "application/octet-stream"
)
