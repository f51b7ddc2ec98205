package fs

import (
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hyperfs/hyperfs/internal/latency"
)

// op is a kind of request.
type op int

const (
	opLookup op = iota
	opForget
	opGetAttr
	opSetAttr
	opStatx
	opReadlink
	opMknod
	opMkdir
	opSymlink
	opLink
	opUnlink
	opRmdir
	opRename
	opCreate
	opTmpfile
	opOpen
	opRelease
	opRead
	opWrite
	opLseek
	opFsync
	opFallocate
	opCopyFileRange
	opGetXattr
	opListXattr
	opSetXattr
	opRemoveXattr
	opOpenDir
	opReleaseDir
	opReadDir
	opReadDirPlus
	opFsyncDir
	opStatFs
	opIoctl
	opFlush
	opCount
)

var opNames = [opCount]string{
	"lookup", "forget", "getattr", "setattr", "statx", "readlink", "mknod", "mkdir", "symlink", "link", "unlink", "rmdir",
	"rename", "create", "tmpfile", "open", "release", "read", "write", "lseek", "fsync", "fallocate", "copy_file_range",
	"getxattr", "listxattr", "setxattr", "removexattr", "opendir", "releasedir", "readdir", "readdirplus", "fsyncdir", "statfs", "ioctl",
	"flush",
}

// waitsFor reports whether a program waits for the answer. To a forget there is none, and the kernel releases after close(2) has returned.
func (o op) waitsFor() bool { return o != opForget && o != opRelease && o != opReleaseDir }

// event is what else is counted.
type event int

const (
	eventInvalEntry event = iota
	eventInvalInode
	eventFlushInode
	eventPassthrough
	eventEcho
	eventCount
)

var eventNames = [eventCount]string{"inval_entry", "inval_inode", "flush_inode", "passthrough_open", "watch_event"}

// meter counts and times what the kernel asks for, of a mount with its branch mounts. Its zero value is ready for use, and its methods may be called concurrently.
type meter struct {
	ops           [opCount]meteredOp
	events        [eventCount]atomic.Uint64
	read, written atomic.Uint64 // bytes, of requests
}

type meteredOp struct {
	took   latency.Histogram
	errors atomic.Uint64
}

// epoch is what times are measured from: one look at the clock is cheaper than time.Now, which reads two.
var epoch = time.Now()

func clock() time.Duration { return time.Since(epoch) }

// done counts a request that began at since.
func (m *meter) done(o op, since time.Duration, st fuse.Status) fuse.Status {
	x := &m.ops[o]
	x.took.Add(clock() - since)
	if !st.Ok() {
		x.errors.Add(1)
	}
	return st
}

func (m *meter) note(e event) { m.events[e].Add(1) }

// counts gives those that are not zero, by name.
func (m *meter) counts() map[string]uint64 {
	all := map[string]uint64{}
	for i := range m.ops {
		if n := m.ops[i].took.Count(); n > 0 {
			all[opNames[i]] = n
		}
	}
	m.addEvents(all)
	return all
}

func (m *meter) addEvents(to map[string]uint64) {
	for i := range m.events {
		if n := m.events[i].Load(); n > 0 {
			to[eventNames[i]] = n
		}
	}
}

// Operation is one kind of request: how many there were, and how long the daemon took for them, from when it had read one until it had its answer.
type Operation struct {
	Name     string
	WaitsFor bool   // a program waits for the answer
	Errors   uint64 // of these requests, those that were refused
	Took     latency.Snapshot
}

// Stats is what the kernel has asked for since the mount, of it and its branch mounts. What it reads and writes past the daemon can't be seen.
type Stats struct {
	Operations []Operation       // those that there were
	Events     map[string]uint64 // what else there was: notifications to the kernel, opens for passthrough, requests by who has read them
	Read       uint64            // bytes
	Written    uint64            // bytes
	Nodes      int               // inodes that the kernel holds
}

// Stats tells what the kernel has asked for.
func (m *Server) Stats() Stats {
	c := m.fs.meter
	s := Stats{Events: map[string]uint64{}, Read: c.read.Load(), Written: c.written.Load(), Nodes: m.Nodes()}
	for i := range c.ops {
		if took := c.ops[i].took.Snapshot(); took.Count > 0 {
			s.Operations = append(s.Operations, Operation{opNames[i], op(i).waitsFor(), c.ops[i].errors.Load(), took})
		}
	}
	c.addEvents(s.Events)
	if m.transport.dev != nil {
		read := m.transport.dev.Stats()
		for name, n := range map[string]uint64{"read_near": read.Near, "read_alone": read.Alone, "near_starved": read.Starved} {
			if n > 0 {
				s.Events[name] = n
			}
		}
	}
	return s
}
