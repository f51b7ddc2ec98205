package strategy

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
)

// The files of a trial. No preimage can have such a name.
const (
	trialSrc = ".trial-src"
	trialDst = ".trial-dst"
)

// trialMu lets one trial at a time use these names. Other processes don't come in between: the store is locked.
var trialMu sync.Mutex

// tryAll tries each tier at s. causes holds why a tier can't be had, nil for those that can.
func tryAll(s site) (probes []Probe, causes []error) {
	trialMu.Lock()
	defer trialMu.Unlock()
	for _, t := range tiers() {
		p, err := probe(s, t)
		probes, causes = append(probes, p), append(causes, err)
	}
	return probes, causes
}

func probe(s site, t tier) (Probe, error) {
	err := t.try(s)
	switch {
	case err == nil:
		return Probe{Kind: t.kind, OK: true, Reason: t.works}, nil
	case t.kind == PureManifest && noSpace(err):
		// Copying needs nothing but space, which may be freed again.
		return Probe{Kind: t.kind, OK: true, Reason: "could not be tried: " + err.Error()}, nil
	}
	return Probe{Kind: t.kind, Reason: err.Error()}, err
}

// try writes a file, puts its bytes into a second one, overwrites the first and looks what the second one holds. An error says which of
// these failed.
func try(d dir, put func(dst, src file) error) (err error) {
	// What a process that died in a trial left behind.
	for _, name := range []string{trialSrc, trialDst} {
		_ = d.remove(name) // if it is there and stays, create says so
	}
	src, err := d.create(trialSrc)
	if err != nil {
		return fmt.Errorf("create a file: %w", err)
	}
	defer func() { err = firstError(err, src.close(), d.remove(trialSrc)) }()
	dst, err := d.create(trialDst)
	if err != nil {
		return fmt.Errorf("create a file: %w", err)
	}
	defer func() { err = firstError(err, dst.close(), d.remove(trialDst)) }()
	return tryWith(dst, src, put)
}

func tryWith(dst, src file, put func(dst, src file) error) error {
	// More than one block, and not a whole number of them.
	was := bytes.Repeat([]byte("preimage"), blockSize/4+1)
	if err := src.writeAt(was, 0); err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	if err := put(dst, src); err != nil {
		return err
	}
	if err := src.writeAt(bytes.ToUpper(was), 0); err != nil {
		return fmt.Errorf("overwrite the original: %w", err)
	}
	got := make([]byte, len(was)+1)
	n, err := dst.readAt(got, 0)
	if err != nil {
		return fmt.Errorf("read what was put away: %w", err)
	}
	if !bytes.Equal(got[:n], was) {
		return errors.New("what was put away has other bytes than the original had")
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
