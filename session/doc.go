// Package session runs commands in a workspace, or in a branch that stands at the workspace's own path.
//
// A command is supervised by a helper: a second process of the same program, which starts the command, takes in what its
// descendants leave behind, and ends all of them. The helper needs nothing of the program but that it imports this package:
// the package's init becomes the helper where the process was started as one, so no main function runs twice.
//
// # Which namespaces a command gets
//
// A plain command gets none: it sees what its caller sees, and its helper is the subreaper of its descendants. One with a
// Source, without a network or in a sandbox gets a mount namespace, and a PID namespace whose init the helper is: then the
// kernel itself ends every descendant, whatever happens to the helper. Root makes them directly; an ordinary user, and any
// sandbox, through a user namespace in which everybody keeps their own numbers.
//
// # The order in a helper
//
// It takes over descriptors and signals, makes the mounts, brings up the loopback device, and only then gives up rights, on one
// thread that nothing else runs on, and starts the command from that thread. The helper's other threads keep theirs: a
// command in a sandbox cannot trace a process that has more rights than itself.
package session
