package strategy

import "golang.org/x/sys/unix"

// On a tmpfs most of what it takes to append is making the page, which then need not be done while a program waits. On a disk it is the write itself,
// and pages that were made in advance would be written to the disk for nothing.
const (
	aheadSize = 2 << 20   // bytes that have their pages before they are appended
	aheadStep = 128 << 10 // at a time: who appends meanwhile waits for it
	aheadRoom = 32        // times aheadSize: where less is free, others need it more
)

// prepare makes pages for what will be appended next. What goes wrong is of no interest: who appends finds it too.
func (h *HotBuffer) prepare() {
	h.mu.Lock()
	s := h.current
	if s == nil || h.failed != nil || h.hold(s) != nil {
		h.mu.Unlock()
		return
	}
	from, to := max(s.ahead, s.end), min(s.end+aheadSize, segmentSize)
	h.mu.Unlock()
	if s.onSpaciousTmpfs() {
		for from < to && unix.Fallocate(s.f.fd, unix.FALLOC_FL_KEEP_SIZE, from, min(aheadStep, to-from)) == nil {
			from += min(aheadStep, to-from)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.ahead = from
	h.let(s)
}

func (s *segment) onSpaciousTmpfs() bool {
	var fs unix.Statfs_t
	err := unix.Fstatfs(s.f.fd, &fs)
	return err == nil && fs.Type == unix.TMPFS_MAGIC && (fs.Blocks == 0 || int64(fs.Bavail)*fs.Bsize >= aheadRoom*aheadSize)
}
