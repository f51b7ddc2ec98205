package nt

import (
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// The classes of NtSetInformationFile that x/sys does not have.
const (
	fileRenameInformationEx = 65
	fileLinkInformation     = 11
)

// nameInformation is FILE_RENAME_INFORMATION and FILE_LINK_INFORMATION, which are alike.
type nameInformation struct {
	flags  uint32 // in the older form a byte: replace what is there
	root   windows.Handle
	length uint32 // bytes
	name   [windows.MAX_PATH]uint16
}

func newNameInformation(to windows.Handle, name string) (*nameInformation, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	chars, err := syscall.UTF16FromString(name)
	if err != nil {
		return nil, err
	}
	n := &nameInformation{root: to, length: uint32(2 * (len(chars) - 1))}
	if len(chars) > len(n.name) {
		return nil, windows.ERROR_FILENAME_EXCED_RANGE
	}
	copy(n.name[:], chars)
	return n, nil
}

// Virus scanners and indexers have a file open for a moment after it was changed. So what such a thing forbids is tried
// again for a while.
const (
	patience = 500 * time.Millisecond
	pause    = 5 * time.Millisecond
)

// insist calls fn again as long as what it says may pass by itself.
func insist(fn func() error, passing func(error) bool) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		err := fn()
		if !passing(err) || time.Now().After(deadline) {
			return err
		}
	}
}

// mayPass is for changes: a name whose file is open somewhere may be refused as if for lack of rights.
func mayPass(err error) bool { return IsInUse(err) || IsDenied(err) }

// Remove takes a name away, also of a file that is read-only or open in a program that allows it to be deleted. Where the
// system can, the name is free when it returns; else as soon as nobody has the file open.
func Remove(at windows.Handle, name string) error {
	return insist(func() error {
		return With(at, name, windows.DELETE|Attributes, ShareAll, 0, remove)
	}, mayPass)
}

func remove(h windows.Handle) error {
	flags := uint32(windows.FILE_DISPOSITION_DELETE | windows.FILE_DISPOSITION_POSIX_SEMANTICS |
		windows.FILE_DISPOSITION_FORCE_IMAGE_SECTION_CHECK | windows.FILE_DISPOSITION_IGNORE_READONLY_ATTRIBUTE)
	err := set(h, windows.FileDispositionInformationEx, &flags)
	if !unknownClass(err) {
		return plain(err)
	}
	return writable(h, func() error {
		yes := uint32(1)
		return plain(set(h, windows.FileDispositionInformation, &yes))
	})
}

// writable calls fn while the file is not read-only, as older systems and filesystems want it. Another name of the
// file, if it has one, is read-only again afterwards.
func writable(h windows.Handle, fn func() error) error {
	is, err := BasicOf(h)
	if err != nil || is.Attributes&windows.FILE_ATTRIBUTE_READONLY == 0 {
		return fn()
	}
	return With(h, "", windows.FILE_WRITE_ATTRIBUTES|Attributes, ShareAll, 0, func(w windows.Handle) error {
		if err := SetAttributes(w, is.Attributes&^windows.FILE_ATTRIBUTE_READONLY); err != nil {
			return err
		}
		if err := fn(); err != nil {
			_ = SetAttributes(w, is.Attributes)
			return err
		}
		// It may be about to vanish, with its last name.
		_ = SetAttributes(w, is.Attributes)
		return nil
	})
}

// Rename gives the name in the directory at another one there, in the place of what may have that, also if it is read-only.
func Rename(at windows.Handle, name, newName string) error {
	to, err := newNameInformation(at, newName)
	if err != nil {
		return err
	}
	return insist(func() error {
		return With(at, name, windows.DELETE|Attributes, ShareAll, 0, func(h windows.Handle) error {
			to.flags = windows.FILE_RENAME_REPLACE_IF_EXISTS | windows.FILE_RENAME_POSIX_SEMANTICS | windows.FILE_RENAME_IGNORE_READONLY_ATTRIBUTE
			err := set(h, fileRenameInformationEx, to)
			if !unknownClass(err) {
				return plain(err)
			}
			return renameOlder(h, at, to, newName)
		})
	}, mayPass)
}

// renameOlder is for systems and filesystems that replace nothing that is open or read-only.
func renameOlder(h, at windows.Handle, to *nameInformation, newName string) error {
	err := With(at, newName, windows.FILE_WRITE_ATTRIBUTES|Attributes, ShareAll, 0, func(there windows.Handle) error {
		is, err := BasicOf(there)
		if err != nil || is.Attributes&windows.FILE_ATTRIBUTE_READONLY == 0 {
			return err
		}
		return SetAttributes(there, is.Attributes&^windows.FILE_ATTRIBUTE_READONLY)
	})
	if err != nil && !IsMissing(err) {
		return err
	}
	to.flags = 1
	return plain(set(h, windows.FileRenameInformation, to))
}

// Link gives the name in the directory at, which is not followed, a second name in the directory to, where it must be free.
func Link(at windows.Handle, name string, to windows.Handle, newName string) error {
	in, err := newNameInformation(to, newName)
	if err != nil {
		return err
	}
	return With(at, name, windows.FILE_WRITE_ATTRIBUTES|Attributes, ShareAll, 0, func(h windows.Handle) error {
		return plain(set(h, fileLinkInformation, in))
	})
}

// Removable reports why a name can't be removed or replaced now: nil, or that another program has it open and does not
// allow that (IsInUse), or that this user may not (IsDenied).
func Removable(at windows.Handle, name string) error {
	return insist(func() error {
		return With(at, name, windows.DELETE|Attributes, ShareAll, 0, func(windows.Handle) error { return nil })
	}, IsInUse)
}

// Delete marks an open file, which was made just now, to be removed.
func Delete(h windows.Handle) error { return remove(h) }
