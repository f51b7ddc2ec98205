// Package fs is the FUSE layer: it translates kernel requests into calls of overlay.Tree and fills the replies. It makes
// no decisions about versions. It sits on the raw protocol, as it wants exact control over node IDs, forgets and caches.
//
// Each method of the filesystem is short: find the node, make one call on the tree, fill the reply. The files are split
// by kind of call; mount.go has what the outside uses.
//
// # What the kernel remembers
//
// Mounted in place, the daemon is the only one that changes what is underneath. So entries, their absence, attributes,
// listings, link targets and pages are cached for good, and taken back by notifications (see notifier). A mount
// elsewhere, whose workspace others can still reach, gives short timeouts.
//
// # Deadlock
//
// Serving a request must not touch a path inside the mount: that would be a request too, which may wait for this one. A
// notification waits for requests that are under way on the inode or directory concerned; so none may be sent from a
// request, nor with a lock held that a request may want.
//
// # Locks
//
// openInode.mu comes before all of the tree's. Those of tables (nodes, handles, listings, openInodes.mu) are short and held
// over no other call.
package fs
