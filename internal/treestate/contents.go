package treestate

// Contents keeps contents of regular files by their checksums, so that states can be made again. The zero value has none.
type Contents struct {
	bySum map[Sum][]byte
	size  int64
}

// Size is how many bytes it keeps.
func (c *Contents) Size() int64 { return c.size }

// KeepOnly drops what none of the states has.
func (c *Contents) KeepOnly(states ...State) {
	old := c.bySum
	c.bySum, c.size = map[Sum][]byte{}, 0
	for _, s := range states {
		for _, e := range s {
			if data, ok := old[e.Sum]; ok {
				c.add(e.Sum, data)
			}
		}
	}
}

func (c *Contents) add(sum Sum, data []byte) {
	if _, ok := c.bySum[sum]; ok {
		return
	}
	if c.bySum == nil {
		c.bySum = map[Sum][]byte{}
	}
	c.bySum[sum] = data
	c.size += int64(len(data))
}
