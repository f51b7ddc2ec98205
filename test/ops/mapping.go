package ops

import (
	"golang.org/x/sys/unix"
)

// Mapping is a shared mapping of a file. Writing beyond the end of the file would be a SIGBUS: Write looks first.
type Mapping struct{ mem []byte }

// Map maps the first n bytes of fd. A second mapping of the same Mapping is EBUSY.
func (m *Mapping) Map(fd int, n int64) error {
	if m.mem != nil {
		return unix.EBUSY
	}
	mem, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	m.mem = mem
	return nil
}

// Write copies p to off of the mapping, as far as the file, which has size bytes, and the mapping reach: nothing beyond
// them is EFAULT.
func (m *Mapping) Write(p []byte, off, size int64) error {
	end := min(size, int64(len(m.mem)))
	if off >= end {
		return unix.EFAULT
	}
	copy(m.mem[off:end], p)
	return nil
}

// Close unmaps.
func (m *Mapping) Close() error {
	if m.mem == nil {
		return nil
	}
	mem := m.mem
	m.mem = nil
	return unix.Munmap(mem)
}
