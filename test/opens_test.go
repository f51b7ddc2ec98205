package test

// opensFlags gives flags for each way in which a mount has files opened: by the kernel alone, or by requests, and then with passthrough or without.
func opensFlags(variant uint32) []string {
	switch variant % 4 {
	case 1:
		return []string{"--passthrough"}
	case 3:
		return []string{"--open-requests", "--no-passthrough"}
	}
	return nil
}
