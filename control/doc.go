// Package control is the API of a running daemon: HTTP/1.1 and JSON on a unix socket. It holds the server, the Go client
// (what the command line itself uses), the types on the wire, and the OpenAPI document that is made from both.
//
// The socket answers its owner and root, nobody else. Where it is follows from the workspace alone: see Sockets.
//
// One table, routes, names every call with its Go types; the server's mux and the OpenAPI document are both made from
// it, so neither can have what the other lacks.
package control
