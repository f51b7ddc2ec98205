package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hyperfs/hyperfs/internal/crash"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// tempBlob is the file that is being written.
const tempBlob = "new"

func (t *Turns) path(b Blob) string { return filepath.Join(t.dir, string(b)) }

func missingBlob(b Blob) error {
	return errs.New(errs.Integrity, "read state of turn", string(b), "it is missing")
}

// keepFile makes a file of a blob, unless there is one that has just these bytes.
func (t *Turns) keepFile(b Blob, data []byte) error {
	if holds(t.path(b), data) {
		return nil
	}
	t.file.Lock()
	defer t.file.Unlock()
	if holds(t.path(b), data) { // somebody else has kept it meanwhile; Windows does not replace a file that is being read
		return nil
	}
	if err := t.s.space.checkFor(int64(len(data))); err != nil {
		return err
	}
	if err := t.makeDir(); err != nil {
		return err
	}
	tmp := filepath.Join(t.dir, tempBlob)
	err := t.writeFile(tmp, data)
	crash.Point("turn-file-written")
	if err == nil {
		err = os.Rename(tmp, t.path(b))
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	crash.Point("turn-file-named")
	return t.syncDir(t.dir)
}

// holds reports whether a file is there and has just these bytes.
func holds(name string, data []byte) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() != int64(len(data)) {
		return false
	}
	buf := make([]byte, min(len(data), 256<<10))
	for len(data) > 0 {
		n, err := io.ReadFull(f, buf[:min(len(buf), len(data))])
		if err != nil || !bytes.Equal(buf[:n], data[:n]) {
			return false
		}
		data = data[n:]
	}
	return true
}

func (t *Turns) makeDir() error {
	err := os.Mkdir(t.dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return t.syncDir(t.s.dir)
}

func (t *Turns) writeFile(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && t.sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes names last over a loss of power, if that is asked for.
func (t *Turns) syncDir(dir string) error {
	if !t.sync {
		return nil
	}
	return syncDirectory(dir)
}

func (t *Turns) readFile(b Blob, _ sum) ([]byte, error) {
	data, err := os.ReadFile(t.path(b))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missingBlob(b)
	}
	return data, err
}

// sweepFiles removes blobs that are files.
func (t *Turns) sweepFiles(ctx context.Context, needed map[sum]struct{}) (n int, freed int64, err error) {
	entries, err := os.ReadDir(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	for _, e := range entries {
		if err = errors.Join(err, ctx.Err()); err != nil {
			break
		}
		s, size, ok := Blob(e.Name()).parse()
		if _, need := needed[s]; !ok || need {
			continue
		}
		err = t.remove(func(unused func(sum) bool) error {
			if !unused(s) {
				return nil
			}
			n, freed = n+1, freed+size
			return os.Remove(filepath.Join(t.dir, e.Name()))
		})
		crash.Point("turn-file-swept")
	}
	return n, freed, err
}
