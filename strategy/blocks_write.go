package strategy

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"encoding/binary"
	"errors"
)

// BlockWriter adds to a block preimage. One goroutine may use it at a time; end it with Close.
type BlockWriter struct {
	f      file
	h      header
	ref    Ref
	at     int64 // where the next entry begins
	synced bool
}

// Create makes a block preimage without an entry, of a file that has size bytes. The name must be free (fs.ErrExist).
func (b *Blocks) Create(name string, size int64) (*BlockWriter, error) {
	ref := Ref{Tier: PureManifest, Name: name, Size: size, Blocks: true}
	if err := b.check(ref); err != nil {
		return nil, failed("create", name, err)
	}
	f, err := b.p.dir.create(name)
	if err != nil {
		return nil, failed("create", name, err)
	}
	w := &BlockWriter{f: f, h: header{id: identityOf(name), size: size}, ref: ref, at: headerLen, synced: b.p.synced}
	err = w.Commit()
	if err == nil && b.p.synced {
		if err = b.p.dir.sync(); err != nil {
			err = os.NewSyscallError("fsync directory", err)
		}
	}
	if err != nil {
		w.Close()
		return nil, failed("create", name, removeAfter(err, b.p.dir, name))
	}
	return w, nil
}

// Append opens a block preimage to add to it.
func (b *Blocks) Append(ref Ref) (*BlockWriter, error) {
	if err := b.check(ref); err != nil {
		return nil, failed("append to", ref.Name, err)
	}
	f, err := b.p.dir.openWritable(ref.Name)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrMissing
	}
	if err != nil {
		return nil, failed("append to", ref.Name, err)
	}
	h, err := readHeader(f, ref)
	if err != nil {
		_ = f.close()
		return nil, failed("append to", ref.Name, err)
	}
	return &BlockWriter{f: f, h: h, ref: ref, at: h.committed, synced: b.p.synced}, nil
}

// Ref names the preimage.
func (w *BlockWriter) Ref() Ref { return w.ref }

// Close releases the descriptor. What was not committed does not count.
func (w *BlockWriter) Close() { _ = w.f.close() }

// Save adds what src, open for reading, holds from one offset to another, as far as the original reached. Holes stay holes. from must be a
// multiple of 4096. It counts when Commit has returned.
func (w *BlockWriter) Save(src *os.File, from, to int64) error {
	defer runtime.KeepAlive(src)
	if to = min(to, w.h.size); from >= to {
		return nil
	}
	err := withBuffer(to-from+entryLen, func(buf []byte) error { return w.save(fileOf(src), from, to, buf) })
	return failed("save into", w.ref.Name, err)
}

func (w *BlockWriter) save(src file, from, to int64, buf []byte) error {
	if to-from <= int64(len(buf)-entryLen) {
		n, err := src.readAt(buf[entryLen:entryLen+to-from], from)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		// Only what reads as zeros can be a hole.
		if int64(n) == to-from && !hasZeroBlock(buf[entryLen:entryLen+n]) {
			return w.addData(buf[:entryLen+n], from)
		}
	}
	l, ok := layoutOf(source{src, true}) // src's offset means nothing to whoever passes it
	if !ok {
		return w.saveDense(src, from, to, buf)
	}
	for off := from; off < to; {
		start, end, err := l.next(off, to)
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		if start < to { // the filesystem's blocks may be smaller than ours
			start = max(off, start-start%blockSize)
		}
		end = min(end+(blockSize-end%blockSize)%blockSize, to)
		if err := w.addHole(off, start); err != nil {
			return err
		}
		if err := w.saveData(src, start, end, buf); err != nil {
			return err
		}
		off = end
	}
	return nil
}

// saveData adds a range that is no hole, in pieces that fit into the buffer. What src has lost at its end meanwhile is a hole.
func (w *BlockWriter) saveData(src file, from, to int64, buf []byte) error {
	for from < to {
		p := buf[:entryLen+min(int64(len(buf)-entryLen), to-from)]
		n, err := src.readAt(p[entryLen:], from)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if n == 0 {
			return w.addHole(from, to)
		}
		if err := w.addData(p[:entryLen+n], from); err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// saveDense is for where the filesystem doesn't tell its holes: it takes zero blocks for holes.
func (w *BlockWriter) saveDense(src file, from, to int64, buf []byte) error {
	piece := int64(len(buf)-entryLen) / blockSize * blockSize
	for ; from < to; from += piece {
		p := buf[entryLen : entryLen+min(piece, to-from)]
		n, err := src.readAt(p, from)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		clear(p[n:])
		at := 0
		for start, end := nextRun(p, 0); ; start, end = nextRun(p, end) {
			if err := w.addHole(from+int64(at), from+int64(start)); err != nil {
				return err
			}
			if start == end {
				break
			}
			if err := w.addData(append(make([]byte, entryLen, entryLen+end-start), p[start:end]...), from+int64(start)); err != nil {
				return err
			}
			at = end
		}
	}
	return nil
}

// addData adds an entry with the bytes of p behind its first entryLen, which are room for its head.
func (w *BlockWriter) addData(p []byte, off int64) error {
	return w.add(entry{off: off, len: int64(len(p) - entryLen), kind: kindData, at: w.at}, p)
}

func (w *BlockWriter) addHole(from, to int64) error {
	if from >= to {
		return nil
	}
	return w.add(entry{off: from, len: to - from, kind: kindHole, at: w.at}, make([]byte, entryLen))
}

func (w *BlockWriter) add(e entry, p []byte) error {
	e.encode(p)
	d := e.newSum(w.h.id, p)
	_, _ = d.Write(p[entryLen:])
	binary.LittleEndian.PutUint64(p[entryLen-8:], d.Sum64())
	if err := write(w.f, p, w.at); err != nil {
		return err
	}
	w.at += int64(len(p))
	return nil
}

// Commit makes what was saved count. When it returns, that is safe from a death of the process, and on disk if Options.Sync says so.
// After an error it is not known what counts, and the writer must not be used any more: nothing that counts may be overwritten.
func (w *BlockWriter) Commit() error {
	next := w.h
	next.committed = w.at
	if next == w.h {
		return nil
	}
	if err := w.sync(); err != nil {
		return failed("commit", w.ref.Name, err)
	}
	if err := write(w.f, next.encode(), 0); err != nil {
		return failed("commit", w.ref.Name, err)
	}
	w.h = next
	return failed("commit", w.ref.Name, w.sync())
}

func (w *BlockWriter) sync() error {
	if !w.synced {
		return nil
	}
	return os.NewSyscallError("fsync", w.f.sync())
}
