package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hyperfs/hyperfs/internal/crash"
)

// journal is a file that commits are appended to, each by one write, before the database has them: a commit of Badger goes through
// several goroutines, and waking these takes longer than all else that a first write to a file costs. There are two, in turn:
// while the database takes what one holds, the other goes on.
//
//	generation      8 bytes, of the file
//	for each commit: length of what follows, CRC-32C of the generation and what follows (4 bytes each), and for each key
//	    kind        1 byte: put or deleted
//	    key, value  each with its length as a uvarint before it
//
// What is behind the last commit is zeros, a commit of an earlier generation, or one that was torn and had not returned. So the journal
// is emptied by giving it a new generation. Numbers are big endian.
type journal struct {
	f          *os.File
	generation uint64
	sum        uint32 // of the generation, which all checksums begin with
	end        int64  // behind the last commit
	commit     []byte // the last one; room for the next
}

const (
	journalHead = 8
	commitHead  = 8
	// journalSize is how large a journal is made, in bytes: so what is appended does not change its size, which would be one more thing
	// for the filesystem to log. It may get larger.
	journalSize = 4 << 20
	commitRoom  = 4 << 10 // bytes, up to which the room of a commit is used again

	opPut     = 1
	opDeleted = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func openJournal(dir string, i int) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint("journal-", i)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{f: f, end: journalHead}, nil
}

// append writes a commit. On an error the journal is as it was.
func (j *journal) append(writes []write) (err error) {
	commit := append(j.commit[:0], make([]byte, commitHead)...)
	for _, w := range writes {
		commit = w.encode(commit)
	}
	if j.commit = commit; cap(commit) > commitRoom {
		j.commit = nil
	}
	binary.BigEndian.PutUint32(commit, uint32(len(commit)-commitHead))
	binary.BigEndian.PutUint32(commit[4:], crc32.Update(j.sum, castagnoli, commit[commitHead:]))
	if _, err := j.f.WriteAt(commit, j.end); err != nil {
		// What was written of it must not come to lie behind a later commit.
		return errors.Join(err, j.f.Truncate(j.end), j.f.Truncate(max(j.end, journalSize)))
	}
	crash.Point("journal-appended")
	j.end += int64(len(commit))
	return nil
}

func sumGeneration(generation uint64) uint32 {
	return crc32.Checksum(binary.BigEndian.AppendUint64(nil, generation), castagnoli)
}

// clear empties the journal for a new generation.
func (j *journal) clear(generation uint64) error {
	if _, err := j.f.WriteAt(binary.BigEndian.AppendUint64(nil, generation), 0); err != nil {
		return err
	}
	resize := j.generation == 0 || j.end > journalSize // it was opened just now, or has grown
	j.generation, j.sum, j.end = generation, sumGeneration(generation), journalHead
	if resize {
		return j.f.Truncate(journalSize)
	}
	return nil
}

// read gives what the journal holds, in order.
func (j *journal) read() (generation uint64, writes []write, err error) {
	b, err := io.ReadAll(io.NewSectionReader(j.f, 0, 1<<40))
	if err != nil || len(b) < journalHead {
		return 0, nil, err
	}
	generation, b = binary.BigEndian.Uint64(b), b[journalHead:]
	begin := sumGeneration(generation)
	for len(b) >= commitHead {
		n, sum := int64(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint32(b[4:])
		b = b[commitHead:]
		if n == 0 || n > int64(len(b)) || crc32.Update(begin, castagnoli, b[:n]) != sum {
			break
		}
		some, err := decodeWrites(b[:n])
		if err != nil {
			return 0, nil, err
		}
		writes, b = append(writes, some...), b[n:]
	}
	return generation, writes, nil
}

// write is one change of a key.
type write struct {
	key, value []byte
	deleted    bool
}

func (w write) encode(b []byte) []byte {
	op := byte(opPut)
	if w.deleted {
		op = opDeleted
	}
	b = append(b, op)
	b = append(binary.AppendUvarint(b, uint64(len(w.key))), w.key...)
	return append(binary.AppendUvarint(b, uint64(len(w.value))), w.value...)
}

func decodeWrites(b []byte) (writes []write, err error) {
	d := &decoder{b: b}
	for d.err == nil && len(d.b) > 0 {
		op := d.byte()
		w := write{key: d.bytes(), value: d.bytes(), deleted: op == opDeleted}
		if op != opPut && op != opDeleted {
			return nil, fmt.Errorf("a commit in the journal has the operation %d", op)
		}
		writes = append(writes, w)
	}
	return writes, d.err
}

// syncFile has the disk take a file, if it is there.
func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0) // FlushFileBuffers of Windows wants to be able to write
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
