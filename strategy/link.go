package strategy

import (
	"bytes"
	"errors"
	"fmt"
)

// The tiers posix-link and ntfs-link are the same on two families of systems.
//
// The tier posix-link keeps the old inode itself: it gets a second name, and the program is given a copy in its place to
// write to. That takes the name of the file and the knowledge that nobody has it open, so it is for whoever owns the tree
// to do (see overlay); Save is given no more than an open file, for which there is only the copy.

// linkWorks is what a trial that went well has shown.
const linkWorks = "linked a file, and the link kept its bytes when another file took its name"

func openLink(kind Kind) func(site) (Strategy, error) {
	return func(s site) (Strategy, error) { return manifest{s.preimages(), kind}, nil }
}

// tryLink gives a file a second name, puts another file into the place of the first, and looks what the second one holds.
func tryLink(s site) (err error) {
	d := s.dir
	for _, name := range []string{trialSrc, trialDst} {
		_ = d.remove(name)
	}
	was := []byte("preimage")
	if err := createIn(d, trialSrc, func(src file) error { return src.writeAt(was, 0) }); err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	defer func() { err = firstError(err, d.remove(trialSrc)) }()
	if err := d.link(trialSrc, d, trialDst); err != nil {
		return fmt.Errorf("link a file: %w", err)
	}
	defer func() { err = firstError(err, d.remove(trialDst)) }()
	return tryReplace(d, was)
}

// tryReplace makes trialSrc another file, and proves that trialDst still holds was.
func tryReplace(d dir, was []byte) error {
	if err := d.remove(trialSrc); err != nil {
		return fmt.Errorf("remove a name: %w", err)
	}
	if err := createIn(d, trialSrc, func(dst file) error { return dst.writeAt(bytes.ToUpper(was), 0) }); err != nil {
		return fmt.Errorf("write another file: %w", err)
	}
	kept, err := d.open(trialDst)
	if err != nil {
		return fmt.Errorf("open the link: %w", err)
	}
	defer func() { _ = kept.close() }()
	got := make([]byte, len(was)+1)
	n, err := kept.readAt(got, 0)
	if err != nil {
		return fmt.Errorf("read the link: %w", err)
	}
	if !bytes.Equal(got[:n], was) {
		return errors.New("the link has other bytes than the file had")
	}
	return nil
}
