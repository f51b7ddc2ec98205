package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sum is the SHA-256 of a blob.
type sum [sha256.Size]byte

func sumOf(b []byte) sum { return sha256.Sum256(b) }

func sumAll(blobs [][]byte) []sum {
	sums := make([]sum, len(blobs))
	for i, b := range blobs {
		sums[i] = sumOf(b)
	}
	return sums
}

// Limits of blobs.
const (
	smallMax  = 64 << 10 // bytes; a larger blob is a file
	keepChunk = 17 << 16 // bytes that one transaction is given, at most: the database takes no more than 1.2 MB
)

func blobKey(s sum) []byte { return append([]byte{keyBlob}, s[:]...) }

func sumOfKey(key []byte) (s sum, ok bool) { return s, copy(s[:], key[1:]) == len(s) }

func blobOf(s sum, size int64) Blob {
	b := make([]byte, 2*len(s), 2*len(s)+12)
	hex.Encode(b, s[:])
	return Blob(strconv.AppendInt(append(b, '-'), size, 10))
}

// parse takes the name apart.
func (b Blob) parse() (s sum, size int64, ok bool) {
	text, length, _ := strings.Cut(string(b), "-")
	n, err := hex.Decode(s[:], []byte(text)[:min(len(text), 2*len(s))])
	if err != nil || n != len(s) || len(text) != 2*len(s) {
		return s, 0, false
	}
	size, err = strconv.ParseInt(length, 10, 64)
	return s, size, err == nil && size >= 0 && blobOf(s, size) == b
}

// Size gives how many bytes the blob has, and -1 where b names none.
func (b Blob) Size() int64 {
	_, size, ok := b.parse()
	if !ok {
		return -1
	}
	return size
}

// Blobs gives the blobs that the state names, without those that its pages list.
func (s *TurnState) Blobs() []Blob {
	list := slices.Clone(s.Pages)
	for _, a := range s.Artifacts {
		list = append(list, a.Data)
	}
	for _, b := range []*Blob{s.Custom, s.Bindings} {
		if b != nil {
			list = append(list, *b)
		}
	}
	return list
}

// EncodePage gives the bytes of a page, which lists blobs.
func EncodePage(list []Blob) ([]byte, error) {
	b := append(make([]byte, 0, 1+len(list)*(len(sum{})+3)), recordVersion)
	for _, name := range list {
		s, size, ok := name.parse()
		if !ok {
			return nil, fmt.Errorf("%q names no blob", name)
		}
		b = binary.AppendUvarint(append(b, s[:]...), uint64(size))
	}
	return b, nil
}

// DecodePage gives the list again.
func DecodePage(b []byte) ([]Blob, error) {
	d := newDecoder(b)
	var list []Blob
	for d.err == nil && len(d.b) > 0 {
		s := sum(d.take(len(sum{})))
		size := d.uvarint()
		if size > 1<<62 {
			return nil, errShort
		}
		list = append(list, blobOf(s, int64(size)))
	}
	return list, d.err
}

func (t *Turns) path(b Blob) string { return filepath.Join(t.dir, string(b)) }

// tempBlob is the file that is being written.
const tempBlob = "new"

// keepFile makes a file of a blob, unless there is one that has just these bytes.
func (t *Turns) keepFile(b Blob, data []byte) error {
	if have, err := os.ReadFile(t.path(b)); err == nil && bytes.Equal(have, data) {
		return nil
	}
	t.file.Lock()
	defer t.file.Unlock()
	if err := t.s.space.check(); err != nil {
		return err
	}
	if err := os.Mkdir(t.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	tmp := filepath.Join(t.dir, tempBlob)
	err := t.writeFile(tmp, data)
	if err == nil {
		err = os.Rename(tmp, t.path(b))
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return nil
}

func (t *Turns) writeFile(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && t.sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (t *Turns) readFile(b Blob, _ sum) ([]byte, error) {
	data, err := os.ReadFile(t.path(b))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missingBlob(b)
	}
	return data, err
}

// sweepFiles removes blobs that are files.
func (t *Turns) sweepFiles(ctx context.Context, needed map[sum]struct{}) (n int, freed int64, err error) {
	entries, err := os.ReadDir(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	for _, e := range entries {
		if err != nil || ctx.Err() != nil {
			return n, freed, errors.Join(err, ctx.Err())
		}
		s, size, ok := Blob(e.Name()).parse()
		if _, need := needed[s]; !ok || need {
			continue
		}
		err = t.remove(func(unused func(sum) bool) error {
			if !unused(s) {
				return nil
			}
			n, freed = n+1, freed+size
			return os.Remove(filepath.Join(t.dir, e.Name()))
		})
	}
	return n, freed, err
}
