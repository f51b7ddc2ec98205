package session

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// foreign is another set of system calls that the same kernel runs, as of 32-bit programs.
type foreign struct{ arch, ioctl uint32 }

// Which system calls a machine has: its own, and those of others that it also runs.
var (
	nativeArch = map[string]uint32{
		"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64, "386": unix.AUDIT_ARCH_I386, "arm": unix.AUDIT_ARCH_ARM,
		"riscv64": unix.AUDIT_ARCH_RISCV64,
	}[runtime.GOARCH]
	foreigners = map[string][]foreign{
		"amd64": {{unix.AUDIT_ARCH_I386, 54}, {unix.AUDIT_ARCH_X86_64, 0x40000000 + 514}}, // the second is x32
		"arm64": {{unix.AUDIT_ARCH_ARM, 54}},
		"386":   {{unix.AUDIT_ARCH_X86_64, 16}, {unix.AUDIT_ARCH_X86_64, 0x40000000 + 514}},
		"arm":   {{unix.AUDIT_ARCH_AARCH64, 29}},
	}[runtime.GOARCH]
)

// forbidTyping keeps this thread, and what it starts, from putting characters into the terminal's input, which the shell that
// started us would take for its user's: the ioctl requests TIOCSTI and TIOCLINUX fail.
func forbidTyping() error {
	if nativeArch == 0 {
		return unsupported("a sandbox on this architecture", unix.ENOSYS)
	}
	program := typingFilter()
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0)
	if err != nil {
		return unsupported("seccomp", os.NewSyscallError("prctl", err))
	}
	return nil
}

// Offsets in struct seccomp_data. Of an argument only the lower half counts: the kernel looks at no more of an ioctl's request.
const (
	offsetCall = 0
	offsetArch = 4
	offsetArg1 = 16 + 8
)

// typingFilter is the filter's program. For each set of system calls: if it is the one, and the call is ioctl, and the request one of the
// two, fail; else the next one.
func typingFilter() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	unless := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: skip}
	}
	is := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: skip}
	}
	answer := func(value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
	}
	var program []unix.SockFilter
	for _, f := range append([]foreign{{nativeArch, unix.SYS_IOCTL}}, foreigners...) {
		program = append(program,
			load(offsetArch), unless(f.arch, 7),
			load(offsetCall), unless(f.ioctl, 5),
			load(offsetArg1), is(unix.TIOCSTI, 2), is(unix.TIOCLINUX, 1),
			answer(unix.SECCOMP_RET_ALLOW),
			answer(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)))
	}
	return append(program, answer(unix.SECCOMP_RET_ALLOW))
}
