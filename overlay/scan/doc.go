// Package scan is the backend without FUSE: it offers what overlay.Workspace offers of a directory that nothing watches. A
// checkpoint is a manifest of the whole tree, with backups of the contents in a tier. What costs a mount nothing costs a
// walk of the tree here.
//
// # What is trusted
//
// A file whose inode, size, mtime and ctime are those of an earlier manifest holds what it held then, unless its ctime is
// not clearly older than that manifest: then a later change may have the same ctime, and the content is compared (see
// manifest.racy). So is a file that somebody had open for writing, since what is stored through a mapping changes no time.
// On Windows a file that somebody has open for writing has no ctime to trust, and is found by opening it without them.
//
// # What is left out
//
// What the ignore patterns match is not walked: see scope, which every manifest has, and manifest.within for two that are compared. Of an ignored directory
// a manifest has an entry only on the way to what is tracked in it. A rollback neither removes nor replaces what is in no manifest: a directory that holds such
// a thing stays, and where its place is needed the rollback is refused.
//
// # Order
//
// A snapshot saves contents, then renames the manifest to its name, then commits the checkpoint: what a crash leaves is
// named by no checkpoint, and gc removes it.
//
// A rollback makes a checkpoint of what is there (the undo checkpoint), verifies every backup that it wants, commits its
// intent, and then makes the tree equal to the manifest. Every step compares first, so that after a crash the next start
// runs it again. A name is only removed or replaced if it holds what the undo checkpoint has of it. At the end the
// tree is scanned once more: a rollback that says it is done has been seen to be.
//
// # Locks
//
// Workspace.admin keeps the calls apart: those that change the store hold it alone, diff and patch share it. history.mu
// comes after it.
package scan
