package uring

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CapOverIOUring is FUSE_OVER_IO_URING of linux/fuse.h: in the kernel's INIT that it has the transport and that it is switched on, in the answer that it is to be used.
const CapOverIOUring = 1 << 41

// Of linux/io_uring.h.
const (
	opURingCmd        = 46 // IORING_OP_URING_CMD
	setupClamp        = 1 << 4
	setupSubmitAll    = 1 << 7
	setupSQE128       = 1 << 10
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13
	enterGetEvents    = 1 << 0
	featSingleMmap    = 1 << 0
	offSQRing         = 0
	offSQEs           = 0x10000000
	sqeSize           = 128
)

// Of linux/fuse.h.
const (
	cmdRegister       = 1 // FUSE_IO_URING_CMD_REGISTER
	cmdCommitAndFetch = 2 // FUSE_IO_URING_CMD_COMMIT_AND_FETCH
)

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq, cq                                                                 ringOffsets
}

// ringOffsets is struct io_sqring_offsets, and struct io_cqring_offsets, where array is named cqes.
type ringOffsets struct {
	head, tail, mask, entries, flagsOrOverflow, droppedOrCQEs, arrayOrFlags, _ uint32
	_                                                                          uint64
}

// sqe is struct io_uring_sqe of 128 bytes, as a command of FUSE has it.
type sqe struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	cmd           uint32
	_             uint32
	addr          uint64
	len           uint32
	cmdFlags      uint32
	userData      uint64
	_             [8]byte
	request       cmdRequest
	_             [sqeSize - 48 - 24]byte
}

// cmdRequest is struct fuse_uring_cmd_req.
type cmdRequest struct {
	flags, commit uint64
	queue         uint16
	_             [6]byte
}

// cqe is struct io_uring_cqe.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

// header is struct fuse_uring_req_header.
type header struct {
	inOut [128]byte // struct fuse_in_header, or of an answer struct fuse_out_header
	op    [128]byte // the request's own structure
	entry struct {  // struct fuse_uring_ent_in_out
		flags, commit uint64
		payload       uint32 // bytes
		_             uint32
		_             uint64
	}
}

// Sizes that the kernel has fixed.
var (
	_ [0]struct{} = [unsafe.Sizeof(sqe{}) - sqeSize]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(cqe{}) - 16]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(header{}) - 288]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(params{}) - 120]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(sqe{}.request) - 48]struct{}{}
)

func setup(entries uint32, p *params) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func enter(fd int, submit, wait, flags uint32) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit), uintptr(wait), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

const parameterFile = "/sys/module/fuse/parameters/enable_uring"

// Enabled says why the kernel does not have the transport, or nothing where it has.
func Enabled() string {
	text, err := os.ReadFile(parameterFile)
	switch {
	case os.IsNotExist(err):
		return "the kernel has no FUSE over io_uring (since Linux 6.14, with CONFIG_FUSE_IO_URING)"
	case err != nil:
		return err.Error()
	case strings.TrimSpace(string(text)) != "Y":
		return "the kernel has it switched off: echo Y >" + parameterFile
	}
	return ""
}

// possibleCPUs reads how many CPUs there may ever be: the kernel wants a queue for each.
func possibleCPUs() (int, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return 0, err
	}
	return countCPUs(string(text))
}

// countCPUs gives one more than the last number of a list as "0-3,8".
func countCPUs(text string) (int, error) {
	last := strings.TrimSpace(text)
	if i := strings.LastIndexAny(last, "-,"); i >= 0 {
		last = last[i+1:]
	}
	var n int
	if _, err := fmt.Sscan(last, &n); err != nil {
		return 0, fmt.Errorf("possible CPUs %q: %w", text, err)
	}
	return n + 1, nil
}
