package strategy

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// tryNtfsLink tries it where the volume says that it is NTFS and has hard links, as others that say so have their own rules: FAT has
// none, and those of ReFS came late.
func tryNtfsLink(s site) error {
	var flags uint32
	name := make([]uint16, windows.MAX_PATH+1)
	err := windows.GetVolumeInformationByHandle(s.dir.h, nil, 0, nil, nil, &flags, &name[0], uint32(len(name)))
	if err != nil {
		return fmt.Errorf("ask what volume it is: %w", err)
	}
	if is := windows.UTF16ToString(name); is != "NTFS" {
		return fmt.Errorf("the volume is %s, not NTFS", is)
	}
	return tryLink(s)
}
