package control

import (
	"reflect"
	"strings"
	"sync"
)

// Document gives the OpenAPI 3.1 document of the API, ready for encoding/json. It is made from the routes and the Go
// types that the server uses, once. The caller must not change it.
func Document() any { return document() }

// document makes it on first use.
var document = sync.OnceValue(func() any {
	requests := &schemas{named: object{}, closed: true}
	replies := &schemas{named: object{}}
	paths := object{}
	for _, r := range routes {
		item, ok := paths[r.path].(object)
		if !ok {
			item = object{}
			paths[r.path] = item
		}
		item[strings.ToLower(r.method)] = operation(r, requests, replies)
	}
	failure := object{
		"description": "It failed, and nothing was changed unless the message says so. The status follows from the code.",
		"content":     content(mediaJSON, replies.of(reflect.TypeFor[ErrorReply]())),
	}
	named := replies.named
	for name, schema := range requests.named {
		named[name] = schema
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title":       "hyperfs",
			"version":     "1",
			"description": "Checkpoints of a workspace: HTTP/1.1 on a unix socket. Durations are nanoseconds, sizes bytes, times RFC 3339. Replies may gain members; requests with unknown ones are refused. Strings that are not UTF-8, which paths may be, have their bytes in not_utf8.",
			"license":     object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"paths": paths,
		"components": object{
			"schemas":   named,
			"responses": object{"Failure": failure},
		},
	}
})

// operation describes one route.
func operation(r route, requests, replies *schemas) object {
	op := object{
		"operationId": r.op,
		"summary":     r.doc,
		"responses": object{
			"200":     object{"description": "It worked.", "content": content(mediaOf(r), replySchema(r, replies))},
			"default": object{"$ref": "#/components/responses/Failure"},
		},
	}
	if p := parameters(r); len(p) > 0 {
		op["parameters"] = p
	}
	if r.body != nil {
		op["requestBody"] = object{"content": content(mediaJSON, requests.of(r.body))}
	}
	return op
}

// parameters describes what is in the path and in the query string.
func parameters(r route) []any {
	var list []any
	if strings.Contains(r.path, "{id}") {
		list = append(list, object{"name": "id", "in": "path", "required": true, "description": "ID of the " + subject(r.path),
			"schema": object{"type": "string"}})
	}
	if strings.Contains(r.path, "{name}") {
		list = append(list, object{"name": "name", "in": "path", "required": true, "description": "name of the " + subject(r.path),
			"schema": object{"type": "string"}})
	}
	if strings.Contains(r.path, "{kind}") {
		list = append(list, object{"name": "kind", "in": "path", "required": true, "description": "kind of profile",
			"schema": object{"type": "string", "enum": profileKinds}})
	}
	for _, p := range r.query {
		schema := object{"type": "string", "minLength": 1}
		if p.flag {
			schema = object{"type": "boolean", "default": false}
		}
		list = append(list, object{"name": p.name, "in": "query", "description": p.doc, "schema": schema})
	}
	return list
}

// subject names what the ID or the name in a path is of.
func subject(path string) string {
	switch {
	case strings.HasPrefix(path, "/v1/turns/"):
		return "turn"
	case strings.HasPrefix(path, "/v1/conversations/"):
		return "conversation"
	case strings.HasPrefix(path, "/v1/branches/"):
		return "branch"
	}
	return "checkpoint"
}

func content(media string, schema object) object {
	return object{media: object{"schema": schema}}
}

func mediaOf(r route) string {
	if r.media != "" {
		return r.media
	}
	return mediaJSON
}

func replySchema(r route, replies *schemas) object {
	switch {
	case r.reply != nil:
		return replies.of(r.reply)
	case r.media == mediaJSON:
		return object{"type": "object"}
	}
	return object{"type": "string"}
}

// Route is one line of the API's overview.
type Route struct {
	Method, Path, Doc string
}

// Routes gives an overview of the API, for documentation.
func Routes() []Route {
	list := make([]Route, len(routes))
	for i, r := range routes {
		list[i] = Route{r.method, r.path, r.doc}
	}
	return list
}
