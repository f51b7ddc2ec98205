package gitpatch

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// A file is compared line by line up to a size of maxText bytes and maxLines lines. Two files at both limits take about
// 150 MiB of memory to compare.
const (
	maxText  = 8 << 20
	maxLines = 250_000
)

// noBlob is the name of the blob of a file that isn't there.
const noBlob = "0000000000000000000000000000000000000000"

// errUnstable says that a file wasn't the same when it was read again.
var errUnstable = errors.New("its content changed while it was being read")

// blob is a file's content: read, if it's text, or else only named.
type blob struct {
	file *File
	name string // SHA-1 in hex
	text []byte // the content, if isText
	// isText is whether the content is within the limits and without NUL. A file that isn't there counts as empty text.
	isText bool
}

// readBlob reads f, which may be nil, from start to end.
func readBlob(f *File) (blob, error) {
	if f == nil {
		return blob{name: noBlob, isText: true}, nil
	}
	if f.Size > maxText {
		name, err := hashBlob(f)
		return blob{file: f, name: name}, err
	}
	data, err := readAll(f)
	if err != nil {
		return blob{}, err
	}
	b := blob{file: f, name: nameOf(data), text: data, isText: true}
	if bytes.IndexByte(data, 0) >= 0 || bytes.Count(data, []byte{'\n'}) > maxLines {
		b.text, b.isText = nil, false
	}
	return b, nil
}

// size is 0 for a file that isn't there.
func (b blob) size() int64 {
	if b.file == nil {
		return 0
	}
	return b.file.Size
}

// copyTo writes the content, and fails if it's no longer the one that was named.
func (b blob) copyTo(w io.Writer) error {
	if b.file == nil {
		return nil
	}
	if b.isText {
		_, err := w.Write(b.text)
		return err
	}
	h := newBlobHash(b.file.Size)
	if err := copyFile(io.MultiWriter(w, h), b.file); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != b.name {
		return errUnstable
	}
	return nil
}

func nameOf(data []byte) string {
	h := newBlobHash(int64(len(data)))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}

func hashBlob(f *File) (string, error) {
	h := newBlobHash(f.Size)
	if err := copyFile(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// newBlobHash starts the hash of a git object of type blob: its header, then its content.
func newBlobHash(size int64) interface {
	io.Writer
	Sum([]byte) []byte
} {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

func readAll(f *File) ([]byte, error) {
	buf := bytes.NewBuffer(make([]byte, 0, f.Size+bytes.MinRead))
	err := copyFile(buf, f)
	return buf.Bytes(), err
}

// copyFile writes the content of f to w, and fails if it isn't as long as f says.
func copyFile(w io.Writer, f *File) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(w, io.LimitReader(r, f.Size+1))
	if err != nil {
		return err
	}
	if n != f.Size {
		return errUnstable
	}
	return nil
}
