package scan

// mayFoldCase says that names that differ in case alone may be one name.
const mayFoldCase = false

func foldsCase(dir) bool { return false }
