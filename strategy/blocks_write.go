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
	l, ok := layoutOf(source{fileOf(src), true}) // src's offset means nothing to whoever passes it
	if !ok {
		l = noLayout{}
	}
	err := withBuffer(to-from+entryLen, func(buf []byte) error { return w.save(fileOf(src), l, from, to, buf) })
	return failed("save into", w.ref.Name, err)
}

// save reads what there is piece by piece. Only what reads as zeros can be a hole, so the filesystem is asked for its layout only there.
func (w *BlockWriter) save(src file, l layout, from, to int64, buf []byte) error {
	piece := int64(len(buf)-entryLen) / blockSize * blockSize
	for from < to {
		p := buf[:entryLen+min(piece, to-from)]
		n, err := src.readAt(p[entryLen:], from)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if n == 0 { // somebody has cut it off behind our back
			return w.addHole(from, to)
		}
		if from, err = w.savePiece(l, p[:entryLen+n], from, to); err != nil {
			return err
		}
	}
	return nil
}

// savePiece adds the bytes of p behind its first entryLen, and the holes among them, and gives where to go on: a hole may be longer.
func (w *BlockWriter) savePiece(l layout, p []byte, off, to int64) (int64, error) {
	data := p[entryLen:]
	begin := 0 // of data that is not added yet
	for at := 0; at < len(data); {
		start, end := nextRun(data, at)
		if at == start {
			at = end
			continue
		}
		hole, err := l.hole(off+int64(at), off+int64(start), to)
		if err != nil {
			return 0, fmt.Errorf("find data: %w", err)
		}
		if hole == off+int64(at) {
			at += len(block(data, at))
			continue
		}
		if err := w.addData(p[begin:entryLen+at], off+int64(begin)); err != nil { // its head goes where bytes were that are added, or a hole
			return 0, err
		}
		if err := w.addHole(off+int64(at), hole); err != nil || hole >= off+int64(len(data)) {
			return hole, err
		}
		at = int(hole - off)
		begin = at
	}
	return off + int64(len(data)), w.addData(p[begin:], off+int64(begin))
}

// addData adds an entry with the bytes of p behind its first entryLen, which are room for its head.
func (w *BlockWriter) addData(p []byte, off int64) error {
	if len(p) == entryLen {
		return nil
	}
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
