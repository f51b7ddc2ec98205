package gitpatch

import (
	"bufio"
	"hash/maphash"
	"io"
)

const (
	minChunk  = 64      // bytes of a line that are compared as one, as git does it
	maxChunks = 1 << 18 // how many chunks of a file are told apart, about; larger files have larger chunks
)

// similarity estimates, in percent, how much of the content of the larger file is in the other, too: bytes of lines, or of
// pieces of long lines, that both have. git apply only shows the figure.
func similarity(before, after blob) (int, error) {
	if before.name == after.name {
		return 100, nil
	}
	larger := max(before.size(), after.size())
	limit := max(minChunk, int(larger/maxChunks))
	seed := maphash.MakeSeed()
	left := map[uint64]int64{} // hash of a chunk → bytes of such chunks that have no partner yet
	err := eachChunk(before, limit, func(chunk []byte) {
		left[maphash.Bytes(seed, chunk)] += int64(len(chunk))
	})
	if err != nil {
		return 0, err
	}
	var common int64
	err = eachChunk(after, limit, func(chunk []byte) {
		h := maphash.Bytes(seed, chunk)
		if n := int64(len(chunk)); left[h] >= n {
			left[h] -= n
			common += n
		}
	})
	return int(common * 99 / larger), err // 100 is for equal content
}

// eachChunk calls fn with every chunk of the content: up to the end of a line, or limit bytes. fn may not keep it.
func eachChunk(b blob, limit int, fn func([]byte)) error {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(b.copyTo(pw)) }()
	defer pr.Close()
	in := bufio.NewReaderSize(pr, 64<<10)
	chunk := make([]byte, 0, limit)
	for {
		c, err := in.ReadByte()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		chunk = append(chunk, c)
		if len(chunk) == limit || c == '\n' && limit == minChunk {
			fn(chunk)
			chunk = chunk[:0]
		}
	}
	if len(chunk) > 0 {
		fn(chunk)
	}
	return nil
}
