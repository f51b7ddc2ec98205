package fs

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// recorder is a filesystem that says what it was asked, and answers as it is told.
type recorder struct {
	fuse.RawFileSystem
	asked  []string
	status fuse.Status
	fill   byte // of all bytes of an answer
	panics bool
}

func (r *recorder) ask(what string, args ...any) fuse.Status {
	if r.panics {
		panic(what)
	}
	r.asked = append(r.asked, what+fmt.Sprintf(" %+v", args))
	return r.status
}

// fillIn makes all of an answer's bytes what the test wants.
func fillIn[T any](r *recorder, out *T) {
	for i := range unsafe.Slice((*byte)(unsafe.Pointer(out)), unsafe.Sizeof(*out)) {
		unsafe.Slice((*byte)(unsafe.Pointer(out)), unsafe.Sizeof(*out))[i] |= r.fill // what is not zero before shows
	}
}

func (r *recorder) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	fillIn(r, out)
	return r.ask("lookup", *in, name)
}

func (r *recorder) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	fillIn(r, out)
	return r.ask("getattr", *in)
}

func (r *recorder) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	fillIn(r, out)
	return r.ask("setattr", *in)
}

func (r *recorder) Statx(_ <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	fillIn(r, out)
	return r.ask("statx", *in)
}

func (r *recorder) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	fillIn(r, out)
	return r.ask("create", *in, name)
}

func (r *recorder) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	fillIn(r, out)
	return r.ask("mkdir", *in, name)
}

func (r *recorder) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return r.ask("unlink", *in, name)
}

func (r *recorder) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return r.ask("rmdir", *in, name)
}

func (r *recorder) Read(_ <-chan struct{}, in *fuse.ReadIn, room []byte) (fuse.ReadResult, fuse.Status) {
	data := room[:len(room)-len(room)/3]
	if r.fill%2 == 0 { // it need not be there
		data = make([]byte, len(data))
	}
	for i := range data {
		data[i] = r.fill
	}
	return fuse.ReadResultData(data), r.ask("read", *in)
}

func (r *recorder) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	for i := range int(r.fill) { // not all of them may fit
		entry := out.AddDirLookupEntry(fuse.DirEntry{Name: fmt.Sprint("file", i*i), Ino: uint64(i), Mode: uint32(r.fill) << 12, Off: in.Offset + uint64(i)})
		if entry == nil {
			break
		}
		if i%3 > 0 {
			fillIn(r, entry)
		}
	}
	return r.ask("readdirplus", *in)
}

func (r *recorder) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return uint32(r.fill), r.ask("write", *in, bytes.Clone(data))
}

func (r *recorder) CopyFileRange(_ <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	return uint32(r.fill), r.ask("copy_file_range", *in)
}

func (r *recorder) GetXAttr(_ <-chan struct{}, in *fuse.InHeader, name string, room []byte) (uint32, fuse.Status) {
	return r.xattr(room), r.ask("getxattr", *in, name, len(room))
}

func (r *recorder) ListXAttr(_ <-chan struct{}, in *fuse.InHeader, room []byte) (uint32, fuse.Status) {
	return r.xattr(room), r.ask("listxattr", *in, len(room))
}

func (r *recorder) xattr(room []byte) uint32 {
	for i := range room {
		room[i] = r.fill
	}
	if len(room) == 0 {
		return uint32(r.fill)
	}
	return uint32(len(room) / 2)
}

func (r *recorder) Release(_ <-chan struct{}, in *fuse.ReleaseIn) { r.ask("release", *in) }
func (r *recorder) Forget(node, lookups uint64)                   { r.ask("forget", node, lookups) }

// encode makes a request.
func encode[T any](opcode uint32, in T, payload string) []byte {
	h := (*fuse.InHeader)(unsafe.Pointer(&in))
	h.Opcode = opcode
	h.Length = uint32(int(unsafe.Sizeof(in)) + len(payload))
	return append(bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in))), payload...)
}

// someRequests are of all kinds that a dispatcher knows, and of some that it does not.
func someRequests(random *rand.Rand) [][]byte {
	h := fuse.InHeader{Unique: random.Uint64(), NodeId: random.Uint64() >> 1, Caller: fuse.Caller{Owner: fuse.Owner{Uid: random.Uint32(), Gid: random.Uint32()}, Pid: random.Uint32()}}
	name := fmt.Sprintf("name\xff%d\x00", random.Uint32())
	data := fmt.Sprint("data", random.Uint64())
	size := random.Uint32N(100)
	extended := h
	extended.TotalExtlen = 1
	return [][]byte{
		encode(opcodeLookup, h, name),
		encode(opcodeMkdir, fuse.MkdirIn{InHeader: extended}, name+"12345678"),
		encode(opcodeGetattr, fuse.GetAttrIn{InHeader: extended}, "12345678"),
		encode(opcodeLookup, fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, pollHackName+"\x00"),
		encode(opcodeGetattr, fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: pollHackInode}}, ""),
		encode(opcodeGetattr, fuse.GetAttrIn{InHeader: h, Flags_: random.Uint32(), Fh_: random.Uint64()}, ""),
		encode(opcodeSetattr, fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: h, Valid: random.Uint32(), Size: random.Uint64()}}, ""),
		encode(opcodeStatx, fuse.StatxIn{InHeader: h, SxMask: random.Uint32()}, ""),
		encode(opcodeCreate, fuse.CreateIn{InHeader: h, Flags: random.Uint32(), Mode: random.Uint32(), Umask: random.Uint32()}, name),
		encode(opcodeMkdir, fuse.MkdirIn{InHeader: h, Mode: random.Uint32()}, name),
		encode(opcodeUnlink, h, name),
		encode(opcodeRmdir, h, name),
		encode(opcodeRead, fuse.ReadIn{InHeader: h, Offset: random.Uint64(), Size: size}, ""),
		encode(opcodeRead, fuse.ReadIn{InHeader: h, Size: 0}, ""),
		encode(opcodeListPlus, fuse.ReadIn{InHeader: h, Offset: random.Uint64(), Size: random.Uint32N(3000)}, ""),
		encode(opcodeListPlus, fuse.ReadIn{InHeader: h, Size: 0}, ""),
		encode(opcodeWrite, fuse.WriteIn{InHeader: h, Offset: random.Uint64(), Size: uint32(len(data))}, data),
		encode(opcodeWrite, fuse.WriteIn{InHeader: h}, ""),
		encode(opcodeCopyRange, fuse.CopyFileRangeIn{InHeader: h, FhIn: random.Uint64(), Len: random.Uint64()}, ""),
		encode(opcodeGetxattr, fuse.GetXAttrIn{InHeader: h, Size: size}, name),
		encode(opcodeGetxattr, fuse.GetXAttrIn{InHeader: h}, name),
		encode(opcodeListxattr, fuse.GetXAttrIn{InHeader: h, Size: size}, ""),
		encode(opcodeListxattr, fuse.GetXAttrIn{InHeader: h}, ""),
		encode(opcodeRelease, fuse.ReleaseIn{InHeader: h, Fh: random.Uint64()}, ""),
		encode(opcodeForget, fuse.ForgetIn{InHeader: h, Nlookup: random.Uint64()}, ""),
		encode(999, h, ""),
	}
}

// TestADispatcherAnswersAsGoFuseDoes gives both the same requests, of a filesystem that answers the same, into memory that was used before.
func TestADispatcherAnswersAsGoFuseDoes(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for round := range 200 {
		status := []fuse.Status{fuse.OK, fuse.OK, fuse.ENOENT, fuse.ERANGE, fuse.ENOSYS, fuse.EIO}[round%6]
		fill := byte(random.Uint32())
		for i, request := range someRequests(random) {
			if round%11 == 10 { // cut short
				request = request[:random.IntN(len(request))]
			}
			var asked [2][]string
			var answers [2][]byte
			for who := range 2 {
				r := &recorder{RawFileSystem: fuse.NewDefaultRawFileSystem(), status: status, fill: fill}
				handle := fuse.NewProtocolServer(r, quiet()).HandleRequest
				if who == 1 {
					handle = (&dispatcher{r, handle, quiet().PanicHandler}).handle
				}
				room := bytes.Repeat([]byte{0xaa}, 4096)
				n, st := handle([][]byte{aligned(request)}, [][]byte{room})
				answers[who], asked[who] = answerFor(request, room, n, st), r.asked
			}
			if !slices.Equal(asked[0], asked[1]) || !bytes.Equal(answers[0], answers[1]) {
				t.Fatalf("round %d, request %d of %d bytes (%v): go-fuse asks %q and answers %x, the dispatcher %q and %x", round, i, len(request), status, asked[0], answers[0], asked[1], answers[1])
			}
		}
	}
}

// answerFor is what a worker of devfuse writes.
func answerFor(request, room []byte, n int, st fuse.Status) []byte {
	if st == fuse.OK {
		return room[:n]
	}
	out := fuse.OutHeader{Length: uint32(sizeOfOutHeader), Status: -int32(st)}
	if len(request) >= 16 {
		out.Unique = headerOf[fuse.InHeader](append(bytes.Clone(request), make([]byte, 64)...)).Unique
	}
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&out)), sizeOfOutHeader))
}

// aligned copies a request to where numbers can be read from.
func aligned(request []byte) []byte {
	room := make([]uint64, len(request)/8+1)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&room[0])), len(request))
	copy(b, request)
	return b
}

func TestADispatcherAnswersForAFilesystemThatPanics(t *testing.T) {
	r := &recorder{panics: true}
	d := &dispatcher{r, nil, func(v any) fuse.Status {
		if v != "lookup" {
			t.Errorf("the panic is %v", v)
		}
		return fuse.EIO
	}}
	if n, st := d.handle([][]byte{aligned(encode(opcodeLookup, fuse.InHeader{}, "a\x00"))}, [][]byte{make([]byte, 4096)}); n != 0 || st != fuse.EIO {
		t.Errorf("%d bytes, %v", n, st)
	}
}

func TestADispatcherDoesNotAnswerInterrupts(t *testing.T) {
	d := &dispatcher{}
	if n, st := d.handle([][]byte{aligned(encode(opcodeInterrupt, fuse.InterruptIn{Unique: 7}, ""))}, [][]byte{make([]byte, 4096)}); n != 0 || st != fuse.OK {
		t.Errorf("%d bytes, %v", n, st)
	}
}

// quiet are options of a server that writes no log.
func quiet() *fuse.MountOptions {
	return &fuse.MountOptions{
		Logger:       log.New(io.Discard, "", 0),
		PanicHandler: func(v any) fuse.Status { panic(v) },
	}
}
