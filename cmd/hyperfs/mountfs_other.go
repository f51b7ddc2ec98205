//go:build !linux

package main

import (
	"context"
	"os"
	"runtime"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// howToMakeOne is the hint where no workspace is found.
const howToMakeOne = "hyperfs snapshot makes one"

// checkFuse says that this program can mount nothing here.
func checkFuse(dir string) error { return hasFuse(dir) }

func hasFuse(dir string) error {
	return errs.New(control.Unsupported, "mount", dir, "hyperfs mounts on Linux alone, and this is %s", runtime.GOOS).
		WithHint("snapshot, diff, rollback and run work without a mount, by the backend scan; hyperfs serve starts a daemon for the API")
}

// hasBackend refuses the backend that is not there, and what it made.
func hasBackend(backend, dir string) error {
	if backend == checkpoint.BackendFuse {
		return hasFuse(dir)
	}
	return nil
}

func openMountable(_ context.Context, cfg overlay.Config) (closable, mounter, error) {
	return nil, nil, hasFuse(cfg.Workspace)
}

func isDeadMount(string) bool { return false }

func cleanDeadMount(string) error { return nil }

func isMounted(string) bool { return false }

func boundBranch(string) (name, mountpoint string) { return "", "" }

func bind(_, at string) error { return hasFuse(at) }

func unbind(at string, _ bool) error { return hasFuse(at) }

func localFeatures() []control.Feature {
	return []control.Feature{{Name: "FUSE", Note: "hyperfs has it on Linux alone"}}
}

// spoolDir names the store's directory.
func spoolDir(store *os.File) string { return store.Name() }
