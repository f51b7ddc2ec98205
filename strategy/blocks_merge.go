package strategy

// Merge adds to the first of several block preimages of one file, the earliest first, what the others have and it lacks: then it is as good as
// all of them. Damage in the others must not get a new checksum, so it is an error (ErrCorrupt). It may be called again after it was interrupted.
func (b *Blocks) Merge(refs []Ref) error {
	for _, ref := range refs[1:] {
		if err := b.Verify(ref); err != nil {
			return err
		}
	}
	c, err := b.OpenChain(refs)
	if err != nil {
		return err
	}
	defer c.Close()
	w, err := b.Append(refs[0])
	if err != nil {
		return err
	}
	defer w.Close()
	err = withBuffer(largeSize, func(buf []byte) error {
		for _, s := range c.saved {
			if err := c.copyTo(w, s, buf); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return failed("merge into", refs[0].Name, err)
	}
	return w.Commit()
}

// copyTo adds a stretch to w, unless it is from there.
func (c *Chain) copyTo(w *BlockWriter, s stretch, buf []byte) error {
	if s.part == 0 {
		return nil
	}
	if s.at == 0 {
		return w.addHole(s.off, s.end())
	}
	for s.len > 0 {
		p := buf[:entryLen+min(int64(len(buf)-entryLen), s.len)]
		if err := c.read(s, p[entryLen:]); err != nil {
			return err
		}
		if err := w.addData(p, s.off); err != nil {
			return err
		}
		s = s.behind(s.off + int64(len(p)-entryLen))
	}
	return nil
}
