package strategy

// Prepare is what otherwise happens in the background, soon after something was saved.
func (h *HotBuffer) Prepare() { h.prepare() }
