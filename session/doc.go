// Package session is what a program calls that lets others work in a workspace: it makes checkpoints, attempts, turns and branches of an open
// workspace, and runs commands in it, or in a branch that stands at the workspace's own path.
//
// # How a session reaches its workspace
//
// Open takes the daemon that answers for the workspace; else it starts one, by the program hyperfs, or opens the workspace in this process, as Config.Start
// says. All calls are those of control.Client: in process the client is connected to a server without a socket, so that there is one way for each, and
// the attempts' engine (package attempt) is the same.
//
// In process there is the backend scan alone, never a mount. A process that serves a mount must not use it itself: while Go's runtime forks, the thread waits in
// the kernel until the child has entered its directory and read its program. If these are on the mount, the answer has to come
// from a goroutine of the same process, and when the garbage collector wants to stop all others at that moment it waits for the thread that forks, and the goroutine
// for it. A page of a mapped file does the same. So a mount is a daemon's, whose own programs are elsewhere.
//
// # Attempts and turns
//
// RunAttempt keeps what a function has done to the files, or rolls it back. RunTurns does so for each input of a Runner, and keeps the messages, artifacts and other state of a
// conversation together with the files. Both give their callback what works in the right place, ends with it, and can have attempts within.
//
// # Commands
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
