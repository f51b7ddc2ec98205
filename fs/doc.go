// Package fs is the FUSE layer: it translates kernel requests into calls of an overlay.Volume and fills the replies. It makes
// no decisions about versions. It sits on the raw protocol, as it wants exact control over node IDs, forgets and caches.
//
// Each method of the filesystem is short: find the node, make one call on its volume, fill the reply. The files are split
// by kind of call; mount.go has what the outside uses.
//
// # Volumes
//
// A mount shows the live tree, and in .hyperfs what a Shelf has: branches and checkpoints. The directory .hyperfs is not listed but answers by
// name; it and the two in it are a volume too (shelfVolume), in which nothing can be changed. Each node is of one volume, and a request
// that concerns two gives EXDEV, or EPERM where one is that of the shelf. Files of the live tree alone may be served past the daemon.
//
// A volume of the Shelf is on loan: opened by the lookup of its name, given back when the kernel has forgotten all of its inodes, its files are
// closed and its requests answered. If its name comes to mean something else meanwhile, what is in use of it is stale: its nodes leave the node
// table at once, as the kernel may remember them for as long as it has memory, and go on as ESTALE.
//
// # What the kernel remembers
//
// Mounted in place, the daemon is the only one that changes what is underneath. So entries, their absence, attributes,
// listings, link targets and pages are cached for good, and taken back by notifications (see notifier). The same holds for what the shelf
// shows, however it is mounted, and for the names on the shelf (see Server.ShelfChanged). A mount
// elsewhere, whose workspace others can still reach, gives short timeouts for the live tree.
//
// A branch may be shown by a mount of its own too (branchmount.go). There the kernel keeps nothing but pages that are mapped, and the mount of the
// workspace is told of each change before that is answered.
//
// # Deadlock
//
// Serving a request must not touch a path inside the mount: that would be a request too, which may wait for this one. A
// notification waits for requests that are under way on the inode or directory concerned; so none may be sent from a
// request, nor with a lock held that a request may want. One exception is a lookup in a volume of which the kernel is to keep nothing, where it opens files by itself: it has the pages of one
// file dropped, which waits for reads and writes of that, and these for no lookup. FlushUnseen makes requests of its own; it is not for a request either. A request of a branch mount may notify the mount of the workspace, whose requests wait
// for nothing of a branch mount; so never the other way round.
//
// # Who watches files
//
// Notifications raise no events for programs that watch files. A process of ours does what raises them, and gets answers of its own: see echo.go.
//
// # Locks
//
// openInode.mu and sharedFiles.opening come before all of a volume's. Those of tables (nodes, handles, listings, openInodes.mu, sharedFiles.mu, shelf.mu) are short and held
// over no other call; that of the nodes comes before volume.idsMu. errand.mu is like them; no request wants echo.mu.
// shelfDir.mu is held while the Shelf names what it has. Who opens a volume of the shelf holds no lock; others who want
// the same one wait.
package fs
