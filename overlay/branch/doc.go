// Package branch is the branches of a workspace: writable copy-on-write views that were forked from a checkpoint, each with checkpoints,
// rollback and undo of its own, nested to any depth.
//
// # Layers
//
// What a branch changed is in layers (checkpoint.Layer). A layer has slot records, (directory, name) → inode or whiteout, and inode
// records, identity → inode of the pool. Layers form a tree that stands on a state of main (overlay.State), whose epoch is pinned as long as
// the layer is there. A branch points to the layer that its changes go to, its live one. All others are sealed: neither their records nor
// their pool inodes ever change. So these are one commit each, whatever the size of the tree:
//
//   - fork: a new layer on the one of the checkpoint, or on main's state
//   - snapshot: a new layer on the live one, which is sealed as the checkpoint's
//   - rollback: a new layer on the checkpoint's; the live one is sealed as the undo checkpoint's
//
// An inode that comes from main keeps main's identity in the branch, also after it was copied up: so hard links stay hard links, and moving a
// directory is two slot records. What a branch makes has an identity of its own: a number of the store, born at -1.
//
// # The pool
//
// Every inode that a layer changed or made is an inode of its own in the pool, with its type, mode, owner, times, xattrs and ACLs. It is named
// by exactly one inode record. A regular file of which no byte changed is there as metadata only: it has the size, and its content is the one
// below. A directory there stays empty, as its names are slot records. An ordinary user's daemon can't give inodes away: where it would have to, the record has the owner.
//
// A change makes the pool inode first and commits the record that names it second; what is not needed any more loses its record first. So a
// death in between leaves at most pool inodes that no record names, which are removed at the next start.
//
// # In memory
//
// A volume that is used has its chain of layers merged into one map (state.go), so that the depth of a nest costs nothing per lookup. One that
// is idle has nothing: it is loaded again when it is used. An inode without a name, removed while it is open or made by O_TMPFILE, has no
// records; its node has what a record would say, and removes its pool inode in the end.
//
// # Locks
//
// They are taken in this order, and none is taken while a later one is held:
//
//  1. Manager.admin: work that removes layers holds it alone; all other administration shares it.
//  2. Volume.admin: one snapshot, rollback or drop of a branch at a time.
//  3. Volume.mu: every operation on the tree shares it. A snapshot holds it alone for the instant of the change of layers, a rollback and a diff
//     of the live state while they work. It must not be held over a call to the Notifier.
//  4. Volume.nameMu: changes of names, one at a time.
//  5. node.mu: of any inode: what its inode record says. Of several: that of a directory first. It is held while a content is copied up.
//  6. state.mu: the merged maps, and node.orphan.
//  7. Volume.nodesMu before node.contentMu; Manager.mu before Manager.numMu; pool.mu; pool.liftMu: short. The workspace's functions in Config are called without Manager.mu,
//     and Config.Pin takes it within: so main may hold its own locks when it calls PinnedEpochs.
package branch
