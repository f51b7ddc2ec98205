package fs

import "sync"

// handleTable numbers open files. 0 is no handle.
type handleTable struct {
	mu    sync.RWMutex
	files []*openFile // guarded by mu; [0] is not used
	free  []uint64    // guarded by mu
}

func newHandleTable() *handleTable { return &handleTable{files: make([]*openFile, 1)} }

func (t *handleTable) add(f *openFile) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := len(t.free); k > 0 {
		fh := t.free[k-1]
		t.free = t.free[:k-1]
		t.files[fh] = f
		return fh
	}
	t.files = append(t.files, f)
	return uint64(len(t.files) - 1)
}

// get gives the file of a handle, or nil.
func (t *handleTable) get(fh uint64) *openFile {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if fh >= uint64(len(t.files)) {
		return nil
	}
	return t.files[fh]
}

func (t *handleTable) remove(fh uint64) *openFile {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fh == 0 || fh >= uint64(len(t.files)) || t.files[fh] == nil {
		return nil
	}
	f := t.files[fh]
	t.files[fh] = nil
	t.free = append(t.free, fh)
	return f
}

// drain takes everything out.
func (t *handleTable) drain() []*openFile {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*openFile
	for _, f := range t.files {
		if f != nil {
			all = append(all, f)
		}
	}
	t.files, t.free = make([]*openFile, 1), nil
	return all
}
