package fs

import (
	"bytes"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// dispatcher answers the requests that programs make by the thousand, and leaves all others to go-fuse, which allocates memory for each. Of a request it makes a call of the same filesystem, and of
// what that says the same answer.
type dispatcher struct {
	fs       fuse.RawFileSystem
	rest     func(in, out [][]byte) (int, fuse.Status) // go-fuse
	panicked func(any) fuse.Status
}

// See enum fuse_opcode in linux/fuse.h.
const (
	opcodeLookup    = 1
	opcodeForget    = 2
	opcodeGetattr   = 3
	opcodeSetattr   = 4
	opcodeMkdir     = 9
	opcodeUnlink    = 10
	opcodeRmdir     = 11
	opcodeRead      = 15
	opcodeWrite     = 16
	opcodeRelease   = 18
	opcodeGetxattr  = 22
	opcodeListxattr = 23
	opcodeInit      = 26
	opcodeCreate    = 35
	opcodeInterrupt = 36
	opcodeListPlus  = 44
	opcodeCopyRange = 47
	opcodeStatx     = 52
)

// What means something of its own to go-fuse: a name, and the inode that it stands for.
const (
	pollHackName  = ".go-fuse-epoll-hack"
	pollHackInode = ^uint64(0)
)

const sizeOfOutHeader = int(unsafe.Sizeof(fuse.OutHeader{}))

// handle answers a request, which is in one piece as the room for its answer is, as fuse.ProtocolServer.HandleRequest does. Nothing that a program asks for is ever given up halfway; so interrupts
// are not answered, with which the kernel is content.
func (d *dispatcher) handle(in, out [][]byte) (n int, st fuse.Status) {
	defer func() {
		if v := recover(); v != nil {
			n, st = 0, d.panicked(v)
		}
	}()
	request, answer := in[0], out[0]
	h := headerOf[fuse.InHeader](request)
	if h == nil || h.NodeId == pollHackInode || h.TotalExtlen != 0 || len(answer) < sizeOfOutHeader+int(unsafe.Sizeof(fuse.CreateOut{})) {
		return d.rest(in, out)
	}
	switch h.Opcode {
	case opcodeLookup:
		if name, ok := nameIn[fuse.InHeader](request); ok {
			st = d.fs.Lookup(nil, h, name, body[fuse.EntryOut](answer))
			return answered[fuse.EntryOut](answer, h, st)
		}
	case opcodeGetattr:
		if in := headerOf[fuse.GetAttrIn](request); in != nil {
			st = d.fs.GetAttr(nil, in, body[fuse.AttrOut](answer))
			return answered[fuse.AttrOut](answer, h, st)
		}
	case opcodeSetattr:
		if in := headerOf[fuse.SetAttrIn](request); in != nil {
			st = d.fs.SetAttr(nil, in, body[fuse.AttrOut](answer))
			return answered[fuse.AttrOut](answer, h, st)
		}
	case opcodeStatx:
		if in := headerOf[fuse.StatxIn](request); in != nil {
			st = d.fs.Statx(nil, in, body[fuse.StatxOut](answer))
			return answered[fuse.StatxOut](answer, h, st)
		}
	case opcodeCreate:
		if name, ok := nameIn[fuse.CreateIn](request); ok {
			st = d.fs.Create(nil, headerOf[fuse.CreateIn](request), name, body[fuse.CreateOut](answer))
			return answered[fuse.CreateOut](answer, h, st)
		}
	case opcodeMkdir:
		if name, ok := nameIn[fuse.MkdirIn](request); ok {
			st = d.fs.Mkdir(nil, headerOf[fuse.MkdirIn](request), name, body[fuse.EntryOut](answer))
			return answered[fuse.EntryOut](answer, h, st)
		}
	case opcodeUnlink:
		if name, ok := nameIn[fuse.InHeader](request); ok {
			return answered[struct{}](answer, h, d.fs.Unlink(nil, h, name))
		}
	case opcodeRmdir:
		if name, ok := nameIn[fuse.InHeader](request); ok {
			return answered[struct{}](answer, h, d.fs.Rmdir(nil, h, name))
		}
	case opcodeRead:
		if in := headerOf[fuse.ReadIn](request); in != nil && len(answer) >= sizeOfOutHeader+int(in.Size) {
			return d.read(in, answer)
		}
	case opcodeListPlus:
		if in := headerOf[fuse.ReadIn](request); in != nil && len(answer) >= sizeOfOutHeader+int(in.Size) {
			list := fuse.NewDirEntryList(answer[sizeOfOutHeader:sizeOfOutHeader+int(in.Size)], in.Offset)
			if st = d.fs.ReadDirPlus(nil, in, list); !st.Ok() {
				return 0, st
			}
			return answerOf(answer, h, len(list.Bytes())), fuse.OK
		}
	case opcodeWrite:
		if in := headerOf[fuse.WriteIn](request); in != nil && len(request) == int(unsafe.Sizeof(*in))+int(in.Size) {
			o := body[fuse.WriteOut](answer)
			o.Size, st = d.fs.Write(nil, in, request[unsafe.Sizeof(*in):])
			return answered[fuse.WriteOut](answer, h, st)
		}
	case opcodeCopyRange:
		if in := headerOf[fuse.CopyFileRangeIn](request); in != nil {
			o := body[fuse.WriteOut](answer)
			o.Size, st = d.fs.CopyFileRange(nil, in)
			return answered[fuse.WriteOut](answer, h, st)
		}
	case opcodeGetxattr, opcodeListxattr:
		if n, st, ok := d.getxattr(request, answer, h); ok {
			return n, st
		}
	case opcodeRelease:
		if in := headerOf[fuse.ReleaseIn](request); in != nil {
			d.fs.Release(nil, in)
			return answered[struct{}](answer, h, fuse.OK)
		}
	case opcodeForget:
		if in := headerOf[fuse.ForgetIn](request); in != nil {
			d.fs.Forget(h.NodeId, in.Nlookup)
			return 0, fuse.OK
		}
	case opcodeInterrupt:
		return 0, fuse.OK
	}
	return d.rest(in, out)
}

func (d *dispatcher) read(in *fuse.ReadIn, answer []byte) (int, fuse.Status) {
	room := answer[sizeOfOutHeader : sizeOfOutHeader+int(in.Size)]
	result, st := d.fs.Read(nil, in, room)
	if !st.Ok() {
		return 0, st
	}
	data, st := result.Bytes(room)
	n := len(data)
	if n > 0 && &data[0] != &room[0] {
		n = copy(room, data)
	}
	result.Done()
	if !st.Ok() {
		return 0, st
	}
	return answerOf(answer, &in.InHeader, n), fuse.OK
}

// getxattr answers one of two questions, of an attribute or of the list of their names: how large it is, or what it is.
func (d *dispatcher) getxattr(request, answer []byte, h *fuse.InHeader) (n int, st fuse.Status, ok bool) {
	in := headerOf[fuse.GetXAttrIn](request)
	if in == nil || len(answer) < sizeOfOutHeader+int(in.Size) {
		return 0, 0, false
	}
	room := answer[sizeOfOutHeader : sizeOfOutHeader+int(in.Size)]
	var size uint32
	if h.Opcode == opcodeListxattr {
		size, st = d.fs.ListXAttr(nil, h, room)
	} else {
		name, ok := nameIn[fuse.GetXAttrIn](request)
		if !ok {
			return 0, 0, false
		}
		size, st = d.fs.GetXAttr(nil, h, name, room)
	}
	switch {
	case in.Size == 0 && (st == fuse.ERANGE || st.Ok()):
		body[fuse.GetXAttrOut](answer).Size = size
		n, st = answered[fuse.GetXAttrOut](answer, h, fuse.OK)
	case st.Ok():
		n = answerOf(answer, h, int(size))
	}
	return n, st, true
}

// headerOf gives what a request begins with, or nil if it's too short for that.
func headerOf[T any](request []byte) *T {
	var t T
	if len(request) < int(unsafe.Sizeof(t)) {
		return nil
	}
	return (*T)(unsafe.Pointer(&request[0]))
}

// nameIn gives the name that comes behind what a request begins with, if there is one and go-fuse has no business with it.
func nameIn[T any](request []byte) (string, bool) {
	var t T
	if len(request) < int(unsafe.Sizeof(t)) {
		return "", false
	}
	name := request[unsafe.Sizeof(t):]
	end := bytes.IndexByte(name, 0)
	if end < 0 || string(name[:end]) == pollHackName {
		return "", false
	}
	return string(name[:end]), true
}

// body gives what comes behind the header of an answer, all of it zero.
func body[T any](answer []byte) *T {
	t := (*T)(unsafe.Pointer(&answer[sizeOfOutHeader]))
	*t = *new(T)
	return t
}

// answered makes an answer with a T as its body. If there is an error it's left to the caller.
func answered[T any](answer []byte, h *fuse.InHeader, st fuse.Status) (int, fuse.Status) {
	if !st.Ok() {
		return 0, st
	}
	var t T
	return answerOf(answer, h, int(unsafe.Sizeof(t))), fuse.OK
}

// answerOf makes the header of an answer, and gives the length of all of it.
func answerOf(answer []byte, h *fuse.InHeader, size int) int {
	n := sizeOfOutHeader + size
	*(*fuse.OutHeader)(unsafe.Pointer(&answer[0])) = fuse.OutHeader{Length: uint32(n), Unique: h.Unique}
	return n
}
