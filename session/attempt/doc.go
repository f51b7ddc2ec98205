// Package attempt begins and ends attempts: work in main or in a branch that begins with a checkpoint, and either stays or is rolled back to it.
// The daemon has an Engine for its socket, and a program that opens a workspace in its own process has one too, so that both mean the same.
//
// # What is under way
//
// In main, and in each branch, there is one attempt at a time. Which are under way is known to the Engine alone, and is gone with its process: the
// checkpoints of attempts that nobody has ended stay active then, and so do the files. Nothing is ever rolled back that nobody has asked for.
//
// An attempt that its owner can't end any more stands in nobody's way. It is abandoned when the next one begins, if the owner was named and its process is
// gone, or if its checkpoint is not active any more, as somebody has promoted or dropped it.
//
// # Locks
//
// Engine.mu guards the table of attempts. It is not held while a checkpoint is made, or rolled back to: entry.begun and entry.ending keep others out.
package attempt
