package session

// capture keeps the first limit bytes of a stream and notes whether there were more. It never fails, so that a command with much to say
// goes on. One goroutine writes at a time.
type capture struct {
	limit int64
	kept  []byte
	cut   bool
}

func (c *capture) Write(b []byte) (int, error) {
	room := c.limit - int64(len(c.kept))
	if int64(len(b)) > room {
		c.cut = true
		c.kept = append(c.kept, b[:room]...)
	} else {
		c.kept = append(c.kept, b...)
	}
	return len(b), nil
}
