package checkpoint

// metaVolatile is the session whose checkpoints are to end with it, as it has no durable journals.
const metaVolatile = "volatile"

// TakeOver ends the checkpoints of a session that had no durable journals, if the store names one, by dispose; and notes session as such a one if
// it has none either. Cut short, it can be called again.
func (s *Store) TakeOver(session string, volatile bool, dispose func(session string) error) error {
	var last []byte
	if err := s.View(func(tx *Tx) (err error) { last, err = tx.Meta(metaVolatile); return err }); err != nil {
		return err
	}
	if last != nil {
		if err := dispose(string(last)); err != nil {
			return err
		}
	}
	switch {
	case volatile:
		return s.Update(func(tx *Tx) error { return tx.PutMeta(metaVolatile, []byte(session)) })
	case last != nil:
		return s.HandOver()
	}
	return nil
}

// HandOver notes that no session is left whose checkpoints are to end with it.
func (s *Store) HandOver() error {
	return s.Update(func(tx *Tx) error { return tx.DeleteMeta(metaVolatile) })
}
