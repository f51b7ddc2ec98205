package control

import (
	"context"
	"io"
	"net/http"
	"os"
	"strconv"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// maxPromotePatch is the largest patch in bytes that a promotion carries in its JSON reply.
const maxPromotePatch = 64 << 20

// patch makes the whole patch before it sends anything, so that a failure has its own status and never looks like a
// short patch.
func patch(s *Server, w http.ResponseWriter, c *call) error {
	h, err := s.in(c)
	if err != nil {
		return err
	}
	spool := &spool{dir: s.spoolDir}
	defer spool.Close()
	if err := h.Patch(c.Context(), c.query["from"], c.query["to"], spool); err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaPatch)
	w.Header().Set("Content-Length", strconv.FormatInt(spool.size, 10))
	w.WriteHeader(http.StatusOK)
	if err := spool.copyTo(w); err != nil {
		// The headers are out: breaking the connection is the only way to say so.
		panic(http.ErrAbortHandler)
	}
	return nil
}

// promote fails, and so leaves the checkpoint active, where the patch does not fit into a reply.
func promote(s *Server, ctx context.Context, c *call, o *PromoteOptions) (r PromoteReply, err error) {
	if err := s.unneeded("promote", c.id); err != nil {
		return r, err
	}
	if !o.Patch {
		r.Checkpoint, err = s.workspace.Promote(ctx, c.id, nil)
		return r, err
	}
	text := limitedBuffer{max: maxPromotePatch}
	k, err := s.workspace.Promote(ctx, c.id, &text)
	return NewPromoteReply(k, string(text.bytes)), err
}

// limitedBuffer keeps up to max bytes and refuses more.
type limitedBuffer struct {
	bytes []byte
	max   int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if len(b.bytes)+len(p) > b.max {
		return 0, errs.New(Capacity, "promote", "", "the patch is larger than %d MiB", b.max>>20).
			WithHint("write it with patch first, then promote without one")
	}
	b.bytes = append(b.bytes, p...)
	return len(p), nil
}

// spoolMemory is how many bytes a spool keeps in memory before it goes to a file.
const spoolMemory = 1 << 20

// spool holds what is written to it: the beginning in memory, all of it in an unnamed file when it grows. It is for one
// goroutine. The zero value with a directory is ready for use.
type spool struct {
	dir  string // where the file goes; "" means the system's directory for temporary files
	head []byte
	file *os.File
	size int64
}

func (s *spool) Write(p []byte) (int, error) {
	if s.file == nil && len(s.head)+len(p) <= spoolMemory {
		s.head = append(s.head, p...)
		s.size += int64(len(p))
		return len(p), nil
	}
	if s.file == nil {
		if err := s.spill(); err != nil {
			return 0, err
		}
	}
	n, err := s.file.Write(p)
	s.size += int64(n)
	return n, err
}

// spill moves what is in memory to the file.
func (s *spool) spill() error {
	f, err := unnamedFile(s.dir)
	if err != nil {
		return errs.Wrap(Capacity, "spool a patch", "", err)
	}
	s.file = f
	_, err = f.Write(s.head)
	s.head = nil
	return err
}

// copyTo writes all of it to w.
func (s *spool) copyTo(w io.Writer) error {
	if s.file == nil {
		_, err := w.Write(s.head)
		return err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.CopyN(w, s.file, s.size)
	return err
}

// Close frees it.
func (s *spool) Close() error {
	s.head = nil
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
