package fs

import (
	"fmt"
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Features are what the mount found in the kernel, and uses.
type Features struct {
	Protocol          string   `json:"protocol"` // of the kernel: "7.45"
	InPlace           bool     `json:"in_place"`
	Passthrough       bool     `json:"passthrough"`
	PassthroughReason string   `json:"passthrough_reason,omitempty"` // why not
	NoOpen            bool     `json:"no_open"`                      // the kernel opens files by itself
	NoOpenReason      string   `json:"no_open_reason,omitempty"`     // why not
	URing             bool     `json:"uring"`                        // requests are taken by io_uring
	URingReason       string   `json:"uring_reason,omitempty"`       // why not
	SingleReader      bool     `json:"single_reader"`                // mostly one thread reads /dev/fuse
	Echo              bool     `json:"echo"`                         // programs that watch files are told of rollbacks and merges
	EchoReason        string   `json:"echo_reason,omitempty"`        // why not
	MaxWrite          int      `json:"max_write"`                    // bytes in one request
	Capabilities      []string `json:"capabilities"`                 // asked for and found
	Missing           []string `json:"missing,omitempty"`            // asked for and not found
}

// capability is a feature of the kernel.
type capability struct {
	flag uint64
	name string
}

// wanted are the capabilities that are asked for on every mount. FUSE_WRITEBACK_CACHE is not among them: a snapshot must hold what
// every write that has returned put there. Nor are locks: the kernel keeps them itself then, which suits a local filesystem.
// Nor is FUSE_READDIRPLUS_AUTO, with which large directories are listed without attributes: nearly all that lists one goes
// on to stat, open or remove what is in it, and a lookup each costs far more than the attributes.
var wanted = []capability{
	{fuse.CAP_ASYNC_READ, "async_read"},
	{fuse.CAP_BIG_WRITES, "big_writes"},
	{fuse.CAP_MAX_PAGES, "max_pages"},
	{fuse.CAP_ATOMIC_O_TRUNC, "atomic_o_trunc"},
	{fuse.CAP_DONT_MASK, "dont_mask"},
	{fuse.CAP_READDIRPLUS, "readdirplus"},
	{fuse.CAP_ASYNC_DIO, "async_dio"},
	{fuse.CAP_PARALLEL_DIROPS, "parallel_dirops"},
	{fuse.CAP_POSIX_ACL, "posix_acl"},
	{fuse.CAP_ABORT_ERROR, "abort_error"},
	{fuse.CAP_CACHE_SYMLINKS, "cache_symlinks"},
	{fuse.CAP_NO_OPENDIR_SUPPORT, "no_opendir"},
	{fuse.CAP_HANDLE_KILLPRIV_V2, "handle_killpriv_v2"},
	{fuse.CAP_SETXATTR_EXT, "setxattr_ext"},
	{fuse.CAP_DIRECT_IO_ALLOW_MMAP, "direct_io_allow_mmap"},
	{fuse.CAP_PASSTHROUGH, "passthrough"},
}

// inPlaceOnly are asked for on a mount in place: pages change only where the kernel knows of it.
var inPlaceOnly = []capability{{fuse.CAP_EXPLICIT_INVAL_DATA, "explicit_inval_data"}}

// noOpenSupport is asked for where the kernel is to open files by itself. With it O_TRUNC is a request of its own, and no file is served past the daemon.
var noOpenSupport = capability{fuse.CAP_NO_OPEN_SUPPORT, "no_open"}

func capabilities(inPlace, noOpen bool) []capability {
	all := slices.Clone(wanted)
	if inPlace {
		all = append(all, inPlaceOnly...)
	}
	if !noOpen {
		return all
	}
	all = slices.DeleteFunc(all, func(c capability) bool { return c.flag == fuse.CAP_ATOMIC_O_TRUNC || c.flag == fuse.CAP_PASSTHROUGH })
	return append(all, noOpenSupport)
}

func maskOf(cs []capability) (mask uint64) {
	for _, c := range cs {
		mask |= c.flag
	}
	return mask
}

func newFeatures(in *fuse.InitIn, asked []capability) Features {
	f := Features{Protocol: fmt.Sprintf("%d.%d", in.Major, in.Minor), MaxWrite: maxWrite}
	for _, c := range asked {
		if in.Flags64()&c.flag != 0 {
			f.Capabilities = append(f.Capabilities, c.name)
		} else {
			f.Missing = append(f.Missing, c.name)
		}
	}
	return f
}
