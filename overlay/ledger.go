//go:build linux

package overlay

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

// stirGrain is how much later than the ledger says the last change may have begun, and stirEnds how much later than that it may have ended. It is noted
// when a program asks for the change, and again when what it needs is recorded.
const (
	stirGrain = 100 * time.Millisecond
	stirEnds  = time.Second
)

// ledger is a file in the store that says when the daemon changed something last. It is in the kernel when the change begins, so a kill can't lose it, and
// tells the last changes of a daemon that was killed from those that somebody made after it.
type ledger struct {
	f     *os.File
	noted atomic.Int64 // ns since 1970: what the file says
}

const ledgerName = "stirred"

// openLedger opens the ledger, and gives what an earlier daemon noted last, 0 where that is not known.
func openLedger(storeFd int) (l *ledger, last int64, err error) {
	fd, err := unix.Openat(storeFd, ledgerName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, 0, errs.New(errs.Path, "open store", ledgerName, "%w", err)
	}
	l = &ledger{f: os.NewFile(uintptr(fd), ledgerName)}
	var b [12]byte
	if n, _ := l.f.ReadAt(b[:], 0); n == len(b) && binary.BigEndian.Uint32(b[8:]) == crc32.ChecksumIEEE(b[:8]) {
		last = int64(binary.BigEndian.Uint64(b[:]))
	}
	return l, last, nil
}

// note says that a change begins now. A failure makes changes of this daemon look like somebody else's, and rollbacks refuse then.
func (l *ledger) note() {
	now := time.Now().UnixNano()
	if last := l.noted.Load(); last <= now && now < last+int64(stirGrain) {
		return
	}
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 12), uint64(now))
	if _, err := l.f.WriteAt(binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)), 0); err == nil {
		l.noted.Store(now) // not before: others who come meanwhile must not go on
	}
}

// clock is a reading of the clock: the run of the system, and what the time of day is ahead of the time since it started. That only changes when the clock is set.
type clock struct {
	boot  uint64
	ahead int64 // ns
}

const metaClock = "clock"

// readClock reads the time since the start before and after the time of day, until it was not kept waiting in between: what it waited would be taken for the clock's being ahead, and later
// for its having been set back.
func readClock() clock {
	c := clock{boot: checkpoint.BootID()}
	least := int64(math.MaxInt64)
	for tries := 0; tries < clockTries && least > clockSlack/8; tries++ {
		before, err := sinceBoot()
		now := time.Now().UnixNano()
		after, err2 := sinceBoot()
		if err != nil || err2 != nil {
			return clock{}
		}
		if after-before < least {
			least, c.ahead = after-before, now-before
		}
	}
	return c
}

// clockTries is how often readClock begins anew at most; where no time was short enough, the shortest counts.
const clockTries = 100

func sinceBoot() (ns int64, err error) {
	var since unix.Timespec
	err = unix.ClockGettime(unix.CLOCK_BOOTTIME, &since)
	return since.Nano(), err
}

func (c clock) encode() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, c.boot), uint64(c.ahead))
}

func decodeClock(b []byte) (c clock, ok bool) {
	if len(b) != 16 {
		return c, false
	}
	return clock{binary.BigEndian.Uint64(b), int64(binary.BigEndian.Uint64(b[8:]))}, true
}

// clockSlack is how much two readings of the same clock may differ, in ns.
const clockSlack = int64(time.Millisecond)

// earliest gives the time that the clock, which was then at seen, may have shown earliest since. It was set back where that is less. What it cannot see is a clock that was
// wrong for a while and is right again.
func (then clock) earliest(seen int64, now clock) int64 {
	switch {
	case now.boot == 0 || then.boot == 0:
		return seen
	case now.boot != then.boot: // it has started since, so that the clock cannot have been before seen at that moment
		return min(seen, now.ahead)
	case then.ahead-now.ahead > clockSlack:
		return seen - (then.ahead - now.ahead)
	}
	return seen
}

// metaRoot has a print of the workspace's own directory. Renaming that changes its ctime, as a chmod would: so its ctime alone says nothing.
const metaRoot = "root"

// rootPrint tells whether the workspace's own directory is what it was: its names, attributes and xattrs. Another inode under one of the names has a ctime of its own.
func (t *Tree) rootPrint() (uint64, error) {
	var st unix.Statx_t
	if err := statFd(t.rootFd, &st); err != nil {
		return 0, err
	}
	xattrs, err := xattrsOf(procPath(t.rootFd))
	if err != nil {
		return 0, err
	}
	var names []string
	err = eachName(t.rootFd, func(name string) error { names = append(names, name); return nil })
	slices.Sort(names)
	slices.SortFunc(xattrs, func(a, b checkpoint.Xattr) int { return strings.Compare(a.Name, b.Name) })
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d %d %q %q", st.Mode, st.Uid, st.Gid, nsOf(st.Mtime), xattrs, names)
	return h.Sum64(), err
}
