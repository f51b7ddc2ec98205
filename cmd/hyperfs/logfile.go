package main

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"sync"
)

// maxLog is how large the daemon's log gets, in bytes, before it is set aside. One older log is kept.
const maxLog = 8 << 20

// logFile is the file "log" in the store. What is written before it is open is kept in memory. It works relative to the
// store's directory, since an in-place mount hides its path. Its methods may be called concurrently.
type logFile struct {
	mu    sync.Mutex // guards what follows
	early bytes.Buffer
	dir   *os.Root
	file  *os.File
	size  int64
}

// newLogger makes a logger that writes text to w.
func newLogger(w io.Writer, debug bool) *slog.Logger {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// open starts the log in the directory dir, which must stay open.
func (f *logFile) open(dir *os.Root) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dir = dir
	if err := f.reopen(); err != nil {
		return err
	}
	_, err := f.write(f.early.Bytes())
	f.early = bytes.Buffer{}
	return err
}

// reopen opens the file, after setting a large one aside. Called with mu held.
func (f *logFile) reopen() error {
	size := int64(0)
	if st, err := f.dir.Lstat("log"); err == nil {
		size = st.Size()
	}
	if size >= maxLog {
		if err := f.dir.Rename("log", "log.1"); err != nil {
			return err
		}
		size = 0
	}
	file, err := f.dir.OpenFile("log", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if f.file != nil {
		f.file.Close()
	}
	f.file, f.size = file, size
	return nil
}

// Write appends one record.
func (f *logFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return f.early.Write(p)
	}
	if f.size+int64(len(p)) > maxLog {
		if err := f.reopen(); err != nil {
			return 0, err
		}
	}
	return f.write(p)
}

func (f *logFile) write(p []byte) (int, error) {
	n, err := f.file.Write(p)
	f.size += int64(n)
	return n, err
}

// takeStderr sends what the process writes to stderr, as the Go runtime does when it dies, to the log.
func (f *logFile) takeStderr() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return takeStderr(f.file)
}
