//go:build linux

package overlay

import (
	"os"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
)

// openHot opens the hot buffer in front of the tiers. It takes over dir.
func (t *tiers) openHot(dir *os.File, cfg Config, store *checkpoint.Store) (err error) {
	defer dir.Close()
	o := strategy.HotOptions{Limits: cfg.Hot.limits(), Sync: cfg.Sync, SyncRecords: store.Sync, Failed: t.hotFailed}
	if cfg.Sync { // each commit is on the disk when it returns
		o.SyncRecords = nil
	}
	if t.hot, err = strategy.OpenHot(dir, o); err != nil {
		return errs.Wrap(errs.Internal, "open store", "hot", err)
	}
	return nil
}

// hotFailed notes that the hot buffer takes nothing any more. What it holds is used from there.
func (t *tiers) hotFailed(cause error) { t.noteDegrade(strategy.Hot, t.Kind(), cause) }

// contentsRecorded has what was recorded just now mirrored together with the preimages that it names.
func (w *Workspace) contentsRecorded() {
	if w.tiers != nil && w.tiers.hot != nil {
		w.tiers.hot.Recorded()
	}
}
