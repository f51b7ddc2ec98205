// Package overlay is the versioned tree: the live tree with its undo log, and what is built on it: snapshot, rollback,
// undo, drop, promote, diff, reconcile, garbage collection. It knows nothing of FUSE and can be used, and is tested,
// without it.
//
// # Ordering
//
// Nothing that existed at the newest checkpoint changes before its record is in the log and its preimage is safe
// (invariant I2). Every mutation therefore runs in this order: find out what the slot or the inode holds; commit the
// records; make the preimage safe (a content preimage is saved before its record, which names it); change. A record
// without its change does no harm: the slot still holds what the record says, and rollback finds nothing to do. Of a
// large file blocks are saved as they are about to change (blocks.go): its record is there from the first change on.
//
// # What needs no record
//
// In an epoch, a slot is covered if the epoch has a record of it, or if its directory is new. An inode is new if it
// sits in a covered slot and the log does not mark it as older. Renaming an old inode writes a record that names it,
// and linking one writes a mark: so an old inode in a covered slot is always known to be old. Newness is worked out
// when a mutation asks, never when a file is only read, and it can be worked out again after a restart.
//
// # Ignored paths
//
// A slot that the ignore patterns match is covered in every epoch, unless a record names a directory above it (ignored.go). Whoever reads the log leaves out what was
// ignored by its path in the state (view_ignored.go). While anything is pinned no slot is covered by that (freeze.go).
//
// # States of the past
//
// A state (past.go) is what the tree was at the beginning of an epoch that is retained: one that an active checkpoint, a pin or an open state needs. It is read while
// the tree changes, by the ordering above: what is live is read first, and then the log is asked whether that has changed since. So nothing may be changed whose record
// checkpoint.Past does not have by then: it takes in what is committed before Update or Flush returns. Whatever drops, joins or gives away records and preimages
// asks Workspace.retained, or oldestPin.
//
// # Locks
//
// They are taken in this order, and none is taken while a later one is held:
//
//  1. Workspace.admin: keeps administrative work apart: rollback, drop, promote and gc hold it alone; snapshot, diff
//     and patch share it, these until they have opened the states that they compare. Workspace.list guards the checkpoint list below it.
//     state.surveying, held while a whole state is looked through, comes here. Workspace.pinning too: one pin at a time.
//     ContractBook.mu, held while what it says is made true, comes here.
//  2. Tree.mu: every operation on the tree shares it; a snapshot holds it alone for the instant of the epoch's change, a
//     rollback while it works. It must not be held over a call to the Notifier. Who reads a state shares it for one call.
//  3. Tree.renameMu: operations that hold more than one directory: rename, rmdir.
//  4. Node.mu: of any inode: its records in this epoch; of a directory: its slots too. A file's comes before its
//     directory's. Those of two directories are held only under renameMu.
//  5. Tree.trashMu: names in the trash. stateFile.mu, which comes right after Tree.mu.
//  6. blockSet.mu: which blocks of a file are saved. Who saves holds Node.mu; who finds them saved needs only this.
//  7. Tree.openMu, Tree.nodesMu and dirCache.mu: short, and no system call but close is made under them. dirCache.mu
//     comes after nodesMu. ignoredWrites.mu and states.mu are like them, and the latter may be taken under Workspace.list.
//  8. tiers.degrading, then tiers.mu: which tier is in use. The first is held while a preimage is saved in another tier.
package overlay
