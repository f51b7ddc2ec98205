package fs

// ForgetName makes the kernel forget a name on the shelf, as it does by itself when it lacks memory.
func (m *Server) ForgetName(kind ShelfKind, name string) {
	notifier{m.fs}.InvalEntry(m.fs.shelf.dirs.kinds[kind], name)
}

// OpenInodes is how many inodes have open files.
func (m *Server) OpenInodes() int {
	t := m.fs.opens
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byNum)
}

// CloseSharedFiles closes all open files of the daemon that no request uses just now, as happens to those that were not used for a while.
func (m *Server) CloseSharedFiles() { m.fs.sharedFiles.drain() }

// SharedFiles is how many there are.
func (m *Server) SharedFiles() int {
	t := m.fs.sharedFiles
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lru.Len()
}

// NearRequests is how many requests were taken on the CPU of who made them, and whether any can be.
func (m *Server) NearRequests() (taken uint64, able bool) {
	s := m.transport.dev.Stats()
	return s.Near, s.NearAble
}
