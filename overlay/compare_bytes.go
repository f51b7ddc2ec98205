//go:build linux

package overlay

import (
	"bytes"
	"cmp"
	"context"
	"io"
)

// compareBuffer is how much is compared at once, in bytes.
const compareBuffer = 64 << 10

// sameRange compares a range of two contents.
func sameRange(ctx context.Context, x, y SideFile, from, to int64) (bool, error) {
	room := min(compareBuffer, to-from)
	bufX, bufY := make([]byte, room), make([]byte, room)
	for at := from; at < to; at += room {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		size := min(room, to-at)
		n, err := readFull(x, bufX[:size], at)
		if err != nil {
			return false, err
		}
		k, err := readFull(y, bufY[:size], at)
		if err != nil {
			return false, err
		}
		if !bytes.Equal(bufX[:n], bufY[:k]) {
			return false, nil
		}
	}
	return true, nil
}

// readFull reads until p is full or the content ends.
func readFull(f SideFile, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		k, err := f.ReadAt(p[n:], off+int64(n))
		if err != nil || k == 0 {
			return n, err
		}
		n += k
	}
	return n, nil
}

// sameBytes compares two contents from the start to the end.
func sameBytes(x, y io.Reader) (bool, error) {
	bufX, bufY := make([]byte, compareBuffer), make([]byte, compareBuffer)
	for {
		n, errX := io.ReadFull(x, bufX)
		k, errY := io.ReadFull(y, bufY)
		switch {
		case !bytes.Equal(bufX[:n], bufY[:k]):
			return false, nil
		case errX == io.EOF || errX == io.ErrUnexpectedEOF:
			return errY == errX, nil
		case errX != nil || errY != nil:
			return false, cmp.Or(errX, errY)
		}
	}
}

// sideReader reads a content from the start to the end.
type sideReader struct {
	f   SideFile
	off int64
}

func (r *sideReader) Read(p []byte) (int, error) {
	n, err := r.f.ReadAt(p, r.off)
	r.off += int64(n)
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

func (r *sideReader) Close() error {
	r.f.Close()
	return nil
}
