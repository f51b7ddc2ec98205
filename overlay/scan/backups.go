package scan

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync/atomic"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/strategy"
)

// backups are the contents that manifests name, each a number in a tier.
type backups struct {
	strategy.Strategy
	probes []strategy.Probe
	next   atomic.Uint64 // the number of the next one
}

// openBackups opens a tier that keeps copies on disk: nobody is asked before a program writes, so that a file of
// the workspace must not be one of the tier's.
func openBackups(kind strategy.Kind, dir *os.File, o strategy.Options) (*backups, error) {
	kinds := []strategy.Kind{strategy.Reflink, strategy.PureManifest}
	if kind != "" && kind != strategy.Auto {
		if !slices.Contains(kinds, kind) {
			return nil, errs.New(errs.Unsupported, "open tier", string(kind), "the backend scan keeps copies on disk").
				WithHint("use --tier reflink, pure-manifest or auto")
		}
		kinds = []strategy.Kind{kind}
	}
	var failed error
	for _, k := range kinds {
		s, probes, err := strategy.Open(k, dir, o)
		if err == nil {
			return &backups{Strategy: s, probes: probes}, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// save keeps the content of f. Many goroutines may call it.
func (b *backups) save(f *os.File) (strategy.Ref, error) {
	name := backupName(b.next.Add(1) - 1)
	ref, err := b.Save(f, name)
	if errors.Is(err, fs.ErrExist) {
		// No checkpoint has this number: a process that died has left it.
		if err := b.Remove(b.refOf(name)); err != nil {
			return ref, err
		}
		ref, err = b.Save(f, name)
	}
	return ref, err
}

// refOf is good for Remove alone.
func (b *backups) refOf(name string) strategy.Ref { return strategy.Ref{Tier: b.Kind(), Name: name} }
