package strategy

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Auto asks Open for the first tier that works.
const Auto Kind = "auto"

// tier is how to get one tier.
type tier struct {
	kind  Kind
	works string                    // what a trial that went well has shown
	put   func(dst, src file) error // how it gets bytes into an empty file: what the trial tries
	open  func(preimages) Strategy
}

// tiers holds all tiers, best first.
var tiers = []tier{
	{Reflink, "cloned a file, and the clone kept its bytes when the original was written to", clone, newReflink},
	{PureManifest, "copied a file", putCopy, newManifest},
}

func putCopy(dst, src file) error {
	_, err := copyWhole(dst, src)
	return err
}

// Kinds names all tiers, best first.
func Kinds() []Kind {
	kinds := make([]Kind, len(tiers))
	for i, t := range tiers {
		kinds[i] = t.kind
	}
	return kinds
}

// Probes tries each tier in dir, the directory of the durable tiers' preimages, and says what came of it, best tier
// first. It leaves nothing behind in dir.
func Probes(dir *os.File) ([]Probe, error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "probe tiers", "", err)
	}
	defer func() { _ = d.close() }()
	probes, _ := tryAll(d)
	return probes, nil
}

// Open opens the tier kind, or for Auto and "" the best that works, on dir: the directory of the durable tiers' preimages,
// on the workspace's filesystem. dir stays the caller's and may be closed afterwards. The probes say what each tier
// answered; they are there also on an error, unless dir itself could not be used.
//
// A tier that can't be had, or an unknown one, is an errs.Error with the code UNSUPPORTED, or CAPACITY where only the lack
// of space spoke against it. Its cause is the tier's (errors.Is with EROFS, ENOSPC, EDQUOT). pure-manifest opens also
// without any space, so that what was saved before can be restored: then its Save says ENOSPC.
func Open(kind Kind, dir *os.File, o Options) (Strategy, []Probe, error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, nil, errs.Wrap(errs.Internal, "open tier", string(kind), err)
	}
	probes, causes := tryAll(d)
	i, err := choose(kind, probes, causes)
	if err != nil {
		_ = d.close()
		return nil, probes, err
	}
	return tiers[i].open(preimages{dir: d, synced: o.Sync}), probes, nil
}

// choose gives the index of the tier to open.
func choose(kind Kind, probes []Probe, causes []error) (int, error) {
	if kind == "" || kind == Auto {
		for i, p := range probes {
			if p.OK {
				return i, nil
			}
		}
		return 0, refused(Auto, errors.Join(causes...), summary(probes))
	}
	for i, p := range probes {
		if p.Kind != kind {
			continue
		}
		if p.OK {
			return i, nil
		}
		return 0, refused(kind, causes[i], p.Reason)
	}
	return 0, errs.New(errs.Unsupported, "open tier", string(kind), "no such tier").WithHint("there are auto, " + join(Kinds()))
}

// refused is the error for a tier that can't be had.
func refused(kind Kind, cause error, reason string) error {
	e := &errs.Error{Code: errs.Unsupported, Op: "open tier", On: string(kind), Err: reasoned{reason, cause}}
	switch {
	case noSpace(cause):
		e.Code = errs.Capacity
		return e.WithHint("free some space on the workspace's filesystem")
	case errors.Is(cause, syscall.EROFS):
		return e.WithHint("the store needs a filesystem that can be written to")
	case kind == Auto:
		return e
	}
	return e.WithHint("the tier auto takes the best one that works here")
}

// reasoned is a cause with a text of its own on one line.
type reasoned struct {
	text  string
	cause error
}

func (r reasoned) Error() string { return r.text }
func (r reasoned) Unwrap() error { return r.cause }

func summary(probes []Probe) string {
	parts := make([]string, len(probes))
	for i, p := range probes {
		parts[i] = fmt.Sprintf("%s: %s", p.Kind, p.Reason)
	}
	return strings.Join(parts, "; ")
}

func join(kinds []Kind) string {
	parts := make([]string, len(kinds))
	for i, k := range kinds {
		parts[i] = string(k)
	}
	return strings.Join(parts, ", ")
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
