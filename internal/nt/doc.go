// Package nt has the calls of Windows that work on a name in a directory which is open: what openat(2) and its like are
// elsewhere. Nobody can lead them astray by replacing a directory above, no path is longer than a name, and they follow no
// symlink and no junction. Names are UTF-8; what is no valid UTF-16 in one has its lone surrogates as WTF-8.
package nt
