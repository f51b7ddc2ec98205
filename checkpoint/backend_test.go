package checkpoint_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
)

func TestAStoreOfTheOtherBackendIsRefused(t *testing.T) {
	for _, made := range []string{checkpoint.BackendFuse, checkpoint.BackendScan} {
		for _, opened := range []string{checkpoint.BackendFuse, checkpoint.BackendScan} {
			t.Run(made+" by "+opened, func(t *testing.T) {
				dir := t.TempDir()
				if is, err := checkpoint.BackendOf(dir); is != "" || err != nil {
					t.Fatalf("an empty directory is the store of %q, %v", is, err)
				}
				s, err := checkpoint.Open(dir, checkpoint.Options{Backend: made})
				if err != nil {
					t.Fatal(err)
				}
				_ = s.Close()
				if is, err := checkpoint.BackendOf(dir); is != made || err != nil {
					t.Errorf("the store is of %q, %v", is, err)
				}
				s, err = checkpoint.Open(dir, checkpoint.Options{Backend: opened})
				if err == nil {
					_ = s.Close()
				}
				if made == opened && err != nil || made != opened && errs.CodeOf(err) != errs.Unsupported {
					t.Errorf("it gives %v", err)
				}
			})
		}
	}
}

func TestAStoreWithoutAMarkIsOneOfMounts(t *testing.T) {
	dir := t.TempDir()
	_ = open(t, dir).Close()
	if err := os.Remove(filepath.Join(dir, "backend")); err != nil {
		t.Fatal(err)
	}
	if is, err := checkpoint.BackendOf(dir); is != checkpoint.BackendFuse || err != nil {
		t.Errorf("it is of %q, %v", is, err)
	}
	if _, err := checkpoint.Open(dir, checkpoint.Options{Backend: checkpoint.BackendScan}); errs.CodeOf(err) != errs.Unsupported {
		t.Errorf("it gives %v", err)
	}
	_ = open(t, dir).Close()
}
