package fs

import (
	"bytes"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// setXattrKillSGID is FUSE_SETXATTR_ACL_KILL_SGID of linux/fuse.h: the caller sets an ACL and is not of the file's group.
const setXattrKillSGID = 1

// capabilityXattr is what the kernel asks for before the first write to a file, also after its attributes were refreshed: a write takes capabilities away.
const capabilityXattr = "security.capability"

// With Options.NoXattrs each of the four requests is answered once, by ENOSYS: from then on the kernel says by itself that there is no such thing (EOPNOTSUPP), also where it looks for
// capabilities before the first write to a file, or for an ACL.

// GetXAttr reads an attribute. With no room in dest it gives the size; ERANGE says that the room is too small. For the question that comes before each
// first write, nothing need be looked up.
func (s *filesystem) GetXAttr(_ <-chan struct{}, in *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if s.noXattrs {
		return 0, fuse.ENOSYS
	}
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return 0, st
	}
	defer n.vol.let()
	if name == capabilityXattr && n.vol.main && s.isBare(n.Inode) {
		return 0, fuse.ENODATA
	}
	size, err := n.vol.GetXattr(n.Inode, name, dest)
	return uint32(max(size, 0)), status(err)
}

// ListXAttr lists names as GetXAttr reads values. Those of trusted.* are only for root, which the lower cannot check,
// as it sees the daemon.
func (s *filesystem) ListXAttr(_ <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	if s.noXattrs {
		return 0, fuse.ENOSYS
	}
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return 0, st
	}
	defer n.vol.let()
	if s.root && in.Uid != 0 {
		return s.listVisible(n, dest)
	}
	size, err := n.vol.ListXattr(n.Inode, dest)
	return uint32(max(size, 0)), status(err)
}

func (s *filesystem) listVisible(n node, dest []byte) (uint32, fuse.Status) {
	all, err := s.allXattrs(n)
	if err != nil {
		return 0, status(err)
	}
	var names bytes.Buffer
	for name := range strings.SplitAfterSeq(string(all), "\x00") {
		if !strings.HasPrefix(name, "trusted.") {
			names.WriteString(name)
		}
	}
	if len(dest) > 0 && names.Len() > len(dest) {
		return uint32(names.Len()), fuse.ERANGE
	}
	copy(dest, names.Bytes())
	return uint32(names.Len()), fuse.OK
}

func (s *filesystem) allXattrs(n node) ([]byte, error) {
	buf := make([]byte, 1024)
	for {
		size, err := n.vol.ListXattr(n.Inode, buf)
		if err == unix.ERANGE && len(buf) < 1<<20 {
			buf = make([]byte, 4*len(buf))
			continue
		}
		return buf[:max(size, 0)], err
	}
}

func (s *filesystem) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	if s.noXattrs {
		return fuse.ENOSYS
	}
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	err := n.vol.SetXattr(n.Inode, name, value, int(in.Flags))
	s.opens.clothe(n.Inode)
	s.sharedFiles.clothe(n.num())
	if err != nil {
		return status(err)
	}
	if in.SetXAttrFlags&setXattrKillSGID != 0 {
		return status(s.killSGID(n))
	}
	return fuse.OK
}

func (s *filesystem) killSGID(n node) error {
	a, err := n.vol.GetAttr(n.Inode, nil)
	if err != nil || a.Mode&unix.S_ISGID == 0 {
		return err
	}
	_, err = n.vol.SetAttr(n.Inode, nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: a.Mode &^ unix.S_ISGID})
	return err
}

func (s *filesystem) RemoveXAttr(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	if s.noXattrs {
		return fuse.ENOSYS
	}
	n, st := s.node(in.NodeId)
	if !st.Ok() {
		return st
	}
	defer n.vol.let()
	return status(n.vol.RemoveXattr(n.Inode, name))
}

// Ioctl refuses all: those that change or read inode flags would need preimages of their own.
func (s *filesystem) Ioctl(_ <-chan struct{}, _ *fuse.IoctlIn, _ []byte, _ *fuse.IoctlOut, _ []byte) fuse.Status {
	return fuse.Status(syscall.ENOTTY)
}
