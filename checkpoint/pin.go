package checkpoint

// Pin says that the state at the beginning of an epoch must be kept for somebody, whatever becomes of the checkpoints.
type Pin struct {
	Epoch Epoch
	Owner string // who needs it; one owner has one pin of an epoch at most
}

func pinKey(p Pin) []byte { return append(epochKey(keyPin, p.Epoch), p.Owner...) }

// PutPin writes a pin.
func (tx *Tx) PutPin(p Pin) error { return tx.Set(pinKey(p), []byte{recordVersion}) }

// DeletePin removes a pin.
func (tx *Tx) DeletePin(p Pin) error { return tx.delete(pinKey(p)) }

// Pins gives all pins, in the order of epochs.
func (tx *Tx) Pins() ([]Pin, error) {
	var all []Pin
	err := tx.each([]byte{keyPin}, nil, func(key, _ []byte) error {
		if len(key) < 9 {
			return errShort
		}
		all = append(all, Pin{keyEpoch(key), string(key[9:])})
		return nil
	})
	return all, err
}
