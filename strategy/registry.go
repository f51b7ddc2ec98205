package strategy

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// Auto asks Open for the first tier that works.
const Auto Kind = "auto"

// tier is how to get one tier.
type tier struct {
	kind  Kind
	works string           // what a trial that went well has shown
	try   func(site) error // does what the tier depends on, and leaves nothing behind
	open  func(site) (Strategy, error)
}

// site is where tiers are tried and opened.
type site struct {
	dir dir // of the durable tiers' preimages; the tier that is opened takes it over
	o   Options
}

// preimages are the durable ones.
func (s site) preimages() preimages { return preimages{dir: s.dir, synced: s.o.Sync} }

// tiers gives the tiers of this system, best first.
func tiers() []tier {
	all := []tier{
		{Reflink, "cloned a file, and the clone kept its bytes when the original was written to", tryClone, openReflink},
		{Tmpfs, "copied a file in RAM", tryTmpfs, openTmpfs},
		{PosixLink, linkWorks, tryLink, openLink(PosixLink)},
		{NtfsLink, linkWorks, tryNtfsLink, openLink(NtfsLink)},
		{PureManifest, "copied a file", tryPut(putCopy), openManifest},
	}
	return slices.DeleteFunc(all, func(t tier) bool { return !slices.Contains(kinds, t.kind) })
}

// tryPut tries a tier that gets bytes into an empty file with put.
func tryPut(put func(dst, src file) error) func(site) error {
	return func(s site) error { return try(s.dir, put) }
}

func putCopy(dst, src file) error {
	_, err := copyWhole(dst, src)
	return err
}

// Kinds names the tiers of this system, best first.
func Kinds() []Kind {
	return slices.Clone(kinds)
}

// Probes tries each tier in dir, the directory of the durable tiers' preimages, and says what came of it, best tier
// first. It leaves no preimage and no file of a trial behind.
func Probes(dir *os.File, o Options) ([]Probe, error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "probe tiers", "", err)
	}
	defer func() { _ = d.close() }()
	probes, _ := tryAll(site{d, o})
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
	probes, causes := tryAll(site{d, o})
	for {
		i, err := choose(kind, probes, causes)
		if err != nil {
			_ = d.close()
			return nil, probes, err
		}
		opened, err := tiers()[i].open(site{d, o})
		if err == nil {
			return opened, probes, nil
		}
		// Its trial went well, and yet it can't be had: for auto, there are others.
		probes[i].OK, probes[i].Reason, causes[i] = false, err.Error(), err
	}
}

// OpenSaved opens the tier kind for what it saved earlier, without trying whether it could save more. It makes no place
// for preimages: where that is gone, the error wraps ErrMissing.
func OpenSaved(kind Kind, dir *os.File, o Options) (Strategy, error) {
	i := slices.Index(kinds, kind)
	if i < 0 {
		return nil, noSuchTier(kind)
	}
	d, err := openDir(dir)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "open tier", string(kind), err)
	}
	open := tiers()[i].open
	if kind == Tmpfs {
		open = openSavedTmpfs
	}
	opened, err := open(site{d, o})
	if err != nil {
		_ = d.close()
		return nil, errs.Ensure("open tier", string(kind), err)
	}
	return opened, nil
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
	return 0, noSuchTier(kind)
}

func noSuchTier(kind Kind) error {
	return errs.New(errs.Unsupported, "open tier", string(kind), "no such tier").WithHint("there are auto, " + join(kinds))
}

// refused is the error for a tier that can't be had.
func refused(kind Kind, cause error, reason string) error {
	e := &errs.Error{Code: errs.Unsupported, Op: "open tier", On: string(kind), Err: reasoned{reason, cause}}
	switch {
	case noSpace(cause):
		e.Code = errs.Capacity
		if kind == Tmpfs {
			return e.WithHint("free some space in RAM, or take another tier")
		}
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

func noSpace(err error) bool { return errs.NoSpace(err) }
