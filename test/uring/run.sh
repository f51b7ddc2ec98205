#!/usr/bin/env bash
# Runs tests of mounts whose requests come by io_uring. The kernel has that switched off unless root switches it on, for all of the machine; so it is put back in the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
parameter=/sys/module/fuse/parameters/enable_uring
if [ ! -e $parameter ]; then
	echo "this kernel has no FUSE over io_uring: there is nothing to test"
	exit
fi
if [ ! -w $parameter ]; then
	echo "only root can switch FUSE over io_uring on: sudo make uring" >&2
	exit 1
fi
before=$(cat $parameter)
trap 'echo "$before" >$parameter' EXIT
echo Y >$parameter
export HYPERFS_TEST_URING=1 HYPERFS_STEPS=${HYPERFS_STEPS:-400} HYPERFS_KILLS=${HYPERFS_KILLS:-10}
${GO:-go} test -race -timeout 10m -count 1 -run "${RUN:-URing|APool|ThatIsNone|ThatWait|InTheMiddle|Posix|Dead|Unmount}" ./fs/...
${GO:-go} test -race -timeout 10m -count 1 -run "${RUN:-DifferentialMount|CrashOfTheDaemon}" ./test
