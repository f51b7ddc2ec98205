package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// The backends. What one keeps in a store means nothing to the other.
const (
	BackendFuse = "fuse"
	BackendScan = "scan"
)

// backendName is a file in the store. A store without it is older than the backend scan.
const backendName = "backend"

// BackendOf tells which backend made the store in dir, "" where there is none. It needs no lock.
func BackendOf(dir string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, backendName))
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", errs.Wrap(errs.Internal, "open store", dir, err)
	}
	_, err = os.Stat(filepath.Join(dir, "db"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return BackendFuse, errs.Wrap(errs.Internal, "open store", dir, err)
}

// checkBackend refuses the store of another backend, and marks a new one. The caller has the lock.
func checkBackend(dir, want string) error {
	is, err := BackendOf(dir)
	if err != nil || is == want {
		return err
	}
	if is != "" {
		return errs.New(errs.Unsupported, "open store", "", "its checkpoints were made by the backend %s, which %s can't read", is, want).
			WithHint("use --backend " + is + ", or remove .hyperfs to give up its checkpoints")
	}
	return errs.Wrap(errs.Internal, "open store", "", writeWhole(filepath.Join(dir, backendName), want+"\n"))
}
