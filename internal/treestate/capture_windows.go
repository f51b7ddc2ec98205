package treestate

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/windows"
)

// attributesKept are the file attributes that a State has, in Entry.Mode above the bits of st_mode.
const attributesKept = windows.FILE_ATTRIBUTE_READONLY | windows.FILE_ATTRIBUTE_HIDDEN | windows.FILE_ATTRIBUTE_SYSTEM |
	windows.FILE_ATTRIBUTE_ARCHIVE | windows.FILE_ATTRIBUTE_NOT_CONTENT_INDEXED

// Capture reads the whole tree below dir, by paths: nobody else may change it meanwhile. It changes nothing in it.
func Capture(dir string, o Options) (State, error) {
	if o.Holes {
		return nil, fmt.Errorf("capture %s: holes: %w", dir, os.ErrInvalid)
	}
	state, inode := State{}, map[string]inodeKey{}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if rel == StoreName && !o.KeepName {
			return filepath.SkipDir
		}
		e, key, err := capture(path, filepath.ToSlash(rel), o)
		state[e.Path], inode[e.Path] = e, key
		return err
	})
	state.linkGroups(inode)
	return state, err
}

func capture(path, rel string, o Options) (Entry, inodeKey, error) {
	e := Entry{Path: rel}
	info, err := os.Lstat(path)
	if err != nil {
		return e, inodeKey{}, err
	}
	attributes := info.Sys().(*syscall.Win32FileAttributeData).FileAttributes
	e.Mode = attributes & attributesKept << 16
	e.Mtime = info.ModTime().UnixNano()
	switch {
	case info.Mode()&(os.ModeSymlink|os.ModeIrregular) != 0:
		e.Mode |= modeSymlink
		if e.Target, err = os.Readlink(path); err != nil {
			return e, inodeKey{}, err
		}
	case info.IsDir():
		e.Mode |= modeDir
	default:
		e.Mode, e.Size = e.Mode|modeRegular, info.Size()
	}
	key, err := identify(path)
	if err != nil || !e.IsRegular() || o.NoHash {
		return e, key, err
	}
	f, err := os.Open(path)
	if err != nil {
		e.Unreadable = err.Error()
		return e, key, nil
	}
	defer f.Close()
	var h Hash
	_, err = io.Copy(&h, f)
	e.Sum = h.Sum()
	return e, key, err
}

// identify tells a file from all others.
func identify(path string) (inodeKey, error) {
	name, err := windows.UTF16PtrFromString(`\\?\` + path)
	if err != nil {
		return inodeKey{}, err
	}
	h, err := windows.CreateFile(name, windows.FILE_READ_ATTRIBUTES, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil,
		windows.OPEN_EXISTING, windows.FILE_FLAG_BACKUP_SEMANTICS|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return inodeKey{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer windows.CloseHandle(h)
	var info windows.ByHandleFileInformation
	err = windows.GetFileInformationByHandle(h, &info)
	return inodeKey{uint64(info.VolumeSerialNumber), uint64(info.FileIndexHigh)<<32 | uint64(info.FileIndexLow)}, err
}

// Remove removes dir with all that is below it, read-only or not.
func Remove(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			err = os.Chmod(path, 0o666)
		}
		return err
	})
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
