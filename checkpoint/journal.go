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
	"slices"

	"github.com/hyperfs/hyperfs/internal/crash"
)

// journal is a file that commits are appended to, each by one write, before the database has them: a commit of Badger goes through
// several goroutines, and waking these takes longer than all else that a first write to a file costs. There are two, in turn:
// while the database takes what one holds, the other goes on.
//
//	head            see journalHead
//	for each commit: length of what follows, CRC-32C of the generation and what follows (4 bytes each), and for each key
//	    kind        1 byte: put or deleted
//	    key, value  each with its length as a uvarint before it
//
// What is behind the last commit is zeros, a commit of an earlier generation, or one that was torn and had not returned. So the journal
// is emptied by giving it a new generation. Numbers are big endian. The head says how far commits have returned: what ends before that is damaged, and not torn.
type journal struct {
	f      *os.File
	head   journalHead
	sum    uint32 // of head.generation, which all checksums begin with
	sized  bool   // it has been made as large as journalSize
	old    bool   // it is one of an earlier version of hyperfs, which had no more of a head than the generation
	commit []byte // the last one; room for the next
}

// journalHead is the beginning of a journal: a byte for the version, these numbers, and the CRC-32C of all that. It is written again after
// every commit; a process that is killed leaves the one or the other.
type journalHead struct {
	generation uint64 // of the file
	end        int64  // behind the last commit
	given      uint64 // what the database has been given, at least: see metaGiven
	boot       uint64 // of the system in which that was written; 0 where it can't be told from others
}

const (
	journalVersion = 0xa2 // of the head; before there were versions, this was the highest byte of a generation
	headLen        = 1 + 4*8 + 4
	journalStart   = 40 // where the first commit is
	oldStart       = 8  // the same, before there were versions
	commitHead     = 8
	// journalSize is how large a journal is made, in bytes: so what is appended does not change its size, which would be one more thing
	// for the filesystem to log. It may get larger.
	journalSize = 4 << 20
	commitRoom  = 4 << 10 // bytes, up to which the room of a commit is used again

	opPut     = 1
	opDeleted = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (h journalHead) encode() []byte {
	b := append(make([]byte, 0, headLen), journalVersion)
	for _, v := range []uint64{h.generation, uint64(h.end), h.given, h.boot} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeHead(b []byte) (h journalHead, ok bool) {
	if len(b) < headLen || b[0] != journalVersion || binary.BigEndian.Uint32(b[headLen-4:]) != crc32.Checksum(b[:headLen-4], castagnoli) {
		return h, false
	}
	number := func(i int) uint64 { return binary.BigEndian.Uint64(b[1+8*i:]) }
	return journalHead{generation: number(0), end: int64(number(1)), given: number(2), boot: number(3)}, true
}

func journalName(i int) string { return fmt.Sprint("journal-", i) }

func openJournal(dir string, i int) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, journalName(i)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{f: f}, nil
}

// append writes a commit. On an error the journal is as it was.
func (j *journal) append(writes []write) (err error) {
	size := commitHead
	for _, w := range writes {
		size += 1 + 2*binary.MaxVarintLen32 + len(w.key) + len(w.value)
	}
	commit := append(slices.Grow(j.commit[:0], size), make([]byte, commitHead)...)
	for _, w := range writes {
		commit = w.encode(commit)
	}
	if j.commit = commit; cap(commit) > commitRoom {
		j.commit = nil
	}
	binary.BigEndian.PutUint32(commit, uint32(len(commit)-commitHead))
	binary.BigEndian.PutUint32(commit[4:], crc32.Update(j.sum, castagnoli, commit[commitHead:]))
	next := j.head
	next.end += int64(len(commit))
	if _, err = j.f.WriteAt(commit, j.head.end); err == nil {
		crash.Point("journal-appended")
		err = j.putHead(next)
	}
	if err != nil {
		// What was written of it must not come to lie behind a later commit.
		return errors.Join(err, j.f.Truncate(j.head.end), j.f.Truncate(max(j.head.end, journalSize)))
	}
	return nil
}

func (j *journal) putHead(h journalHead) error {
	if _, err := j.f.WriteAt(h.encode(), 0); err != nil {
		return err
	}
	j.head = h
	return nil
}

func sumGeneration(generation uint64) uint32 {
	return crc32.Checksum(binary.BigEndian.AppendUint64(nil, generation), castagnoli)
}

// clear empties the journal for a new generation.
func (j *journal) clear(generation, given uint64) error {
	resize := !j.sized || j.head.end > journalSize
	if err := j.putHead(journalHead{generation: generation, end: journalStart, given: given, boot: BootID()}); err != nil {
		return err
	}
	j.old, j.sized, j.sum = false, true, sumGeneration(generation)
	if resize {
		return j.f.Truncate(journalSize)
	}
	return nil
}

// close ends the use of a journal. Where the database has all that is in it, the next process has less to read.
func (j *journal) close(empty bool) error {
	var err error
	if empty {
		h := j.head
		h.end = journalStart
		if err = j.putHead(h); err == nil {
			err = errors.Join(j.f.Truncate(journalStart), j.f.Sync()) // so that after a loss of power nobody takes it for damaged
		}
	}
	return errors.Join(err, j.f.Close())
}

// read gives what the journal holds, in order. torn says that commits which have returned are missing: somebody has damaged the file, or the power went before the disk had it.
func (j *journal) read() (writes []write, torn bool, err error) {
	st, err := j.f.Stat()
	if err != nil {
		return nil, false, err
	}
	b := make([]byte, st.Size()) // at once: what grows meanwhile is copied again and again
	if _, err := io.ReadFull(io.NewSectionReader(j.f, 0, int64(len(b))), b); err != nil {
		return nil, false, err
	}
	at, err := j.readHead(b)
	if err != nil || at == 0 {
		return nil, false, err
	}
	begin := sumGeneration(j.head.generation)
	for len(b)-at >= commitHead {
		n, sum := int64(binary.BigEndian.Uint32(b[at:])), binary.BigEndian.Uint32(b[at+4:])
		rest := b[at+commitHead:]
		if n == 0 || n > int64(len(rest)) || crc32.Update(begin, castagnoli, rest[:n]) != sum {
			break
		}
		some, err := decodeWrites(rest[:n])
		if err != nil {
			return nil, false, err
		}
		writes, at = append(writes, some...), at+commitHead+int(n)
	}
	return writes, int64(at) < j.head.end, nil
}

// errNoHead says that a file does not begin like a journal.
var errNoHead = errors.New("its beginning is damaged")

// readHead reads the head and gives where the first commit is; 0 where the file was never a journal.
func (j *journal) readHead(b []byte) (start int, err error) {
	h, ok := decodeHead(b)
	switch {
	case ok:
		j.head = h
		return journalStart, nil
	case len(b) == 0:
		return 0, nil
	case len(b) < oldStart || b[0] != 0:
		return 0, errNoHead
	}
	j.old, j.head.generation = true, binary.BigEndian.Uint64(b)
	return oldStart, nil
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
