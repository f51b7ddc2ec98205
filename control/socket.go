package control

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// dialTimeout is how long a connection to a socket on this machine may take.
const dialTimeout = 5 * time.Second

// SocketName gives the name of a workspace's socket: a hash of its absolute path, symlinks resolved.
func SocketName(workspace string) string {
	sum := sha256.Sum256([]byte(workspace))
	return hex.EncodeToString(sum[:16]) + ".sock"
}

// noDaemon is the error where nobody answers for a workspace.
func noDaemon(workspace string) error {
	return errs.New(NotFound, "connect", workspace, "no daemon answers for it").WithHint("hyperfs mount starts one")
}
