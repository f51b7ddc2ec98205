// Package runtime has sessions in which a program runs piece by piece and keeps its variables in between, and coordinates one of them over two phases.
//
// A CodeSession is one runtime: a Node.js or a Python process (Start), or a JavaScript engine inside this process (package javascript). Where a process runs,
// in which directory or branch, with what rights, is for whoever gives it its Starter: package session does, with commands.
//
// # Two phases
//
// A program is worked on in two phases: the distiller's finds out what matters, and hands a value, the evidence, to the executor's by calling final(request,
// evidence). A Shared coordinates that. In shared mode both phases have one session: the evidence stays where it is, the executor's functions and inputs
// are patched in, and no byte of the evidence crosses to this process. That needs a session that is an Adopter, as those of JavaScript are. In fallback
// mode, each phase has a session of its own, and the evidence crosses through this process as JSON. What a caller does and gets is the same.
//
// # Values
//
// What crosses is JSON, and nothing is silently changed on its way: a value that JSON would give back as something else is said not to be one. Exact
// rules are in docs/runtimes.md.
//
// # The process and its driver
//
// A process runs a small program, the driver, that has the other end of a socket, as its standard input at first; it moves that out of the program's reach. So
// standard output and error are the program's own. On the socket there are frames in both directions:
//
//	length, 4 bytes, big endian | kind, 1 byte | JSON
//
// Requests have an ID and get one reply each. A call of a host function comes the other way and gets its answer as a frame, too. An interrupt names
// the request that is to end, so that it never hits the next one. Who violates this, or sends more than Limits.Value, is ended.
//
// The driver replies when what the program wrote is in the pipes: what is in them then belongs to the request.
//
// # Locks
//
// Requests of a session come one after the other (process.turn). process.mu guards its tables, process.writing its side of the socket; neither is
// held while the other is taken. Shared.turn is held over calls of the session.
package runtime
