// Package merge plans what has to be done to a tree so that it takes over what was changed in a branch of it: a three-way
// merge of the fork point, of the tree as it is now (ours), and of the branch (theirs).
//
// # How it thinks
//
// A diff names what changed by path, and tells renames by identity. From the two diffs the plan makes nodes (node.go): a node is
// one name of one thing, with the version that each of the three trees has of it, wherever it is there. Each property of a
// node is merged by itself (decide.go): whether it is there, its directory, its name, its content, its mode, its owner, each
// xattr. A property that one side changed is taken from that side; one that both changed, not alike, is a conflict. So a file
// that was renamed here and edited there is both, and a new file follows the directory that the other side has moved.
// What then does not make a tree is a conflict too (structure.go): two nodes under one name, a node in a directory that is
// gone, directories that are in each other.
//
// Which names are links to one inode is merged as well (links.go). Only where a changed file has more than one name may a tree
// have to be walked; all else costs what changed.
//
// # What it relies on
//
// A diff that leaves something out would be a merge that loses it. Where names changed, the plan therefore lists the
// directories of both trees and compares (side.go); what the diff does not explain ends in an integrity error.
package merge
