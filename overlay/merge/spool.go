//go:build linux

package merge

import (
	"crypto/sha256"
	"io"
	"os"
)

// spool keeps merged texts in a file without a name.
type spool struct {
	dir  string
	file *os.File // nil until there is a text
	size int64
}

// piece is a text in the spool.
type piece struct {
	off, size int64
	sum       [sha256.Size]byte
}

func (s *spool) add(text []byte) (piece, error) {
	if s.file == nil {
		f, err := os.CreateTemp(s.dir, "merge-*")
		if err != nil {
			return piece{}, err
		}
		s.file = f
		if err := os.Remove(f.Name()); err != nil {
			return piece{}, err
		}
	}
	p := piece{off: s.size, size: int64(len(text)), sum: sha256.Sum256(text)}
	n, err := s.file.WriteAt(text, s.size)
	s.size += int64(n)
	return p, err
}

func (s *spool) close() error {
	if s == nil || s.file == nil {
		return nil
	}
	return s.file.Close()
}

// Text gives the content of a put whose source is FromMerge. It may be used until Close.
func (p *Plan) Text(op *Op) *io.SectionReader {
	return io.NewSectionReader(p.spool.file, op.text.off, op.text.size)
}

// Close lets go of the merged texts. It may be called more than once.
func (p *Plan) Close() error {
	s := p.spool
	p.spool = nil
	return s.close()
}
