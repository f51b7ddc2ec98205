// Package testfs gives tests real filesystems: btrfs, XFS and ext4 on loop devices, tmpfs, and overlayfs. Each is mounted
// for one test and goes away with it, also when the test fails.
//
// They need root, and a mkfs for the disk filesystems. Where that is missing the test is skipped; with CI=true in the
// environment it fails instead, so that a machine which can't test doesn't pass for one that did.
package testfs
