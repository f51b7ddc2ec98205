#!/usr/bin/env bash
# demo.sh HYPERFS: mounts a real project, damages it with real tools, rolls it back, proves that it is what it was, and
# sets the time that took beside other ways. Leaves nothing behind.
set -euo pipefail
hyperfs=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
top=$(mktemp -d "${TMPDIR:-/tmp}/hyperfs-demo.XXXXXX")
project=$top/project
log=$top/log
. "$here/project.sh"
. "$here/peers.sh"

cleanup() {
  local code=$?
  trap - EXIT INT TERM
  cd /
  if mountpoint -q "$project"; then
    "$hyperfs" unmount --lazy "$project" >/dev/null 2>&1 || fusermount3 -uz "$project" || umount -l "$project"
  fi
  [ "$code" = 0 ] || { echo "demo failed; the end of its log:" >&2; tail -n 20 "$log" >&2; }
  chmod -R u+rwX "$top" 2>/dev/null || true
  mountpoint -q "$project" || rm -rf "$top"
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '\n\033[1m%s\033[m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
show() { printf '  $ %s\n' "$1"; }

# git status without its habit of rewriting the index.
git_status() { GIT_OPTIONAL_LOCKS=0 git status --porcelain; }

# timed VAR COMMAND…: runs it and puts the milliseconds it took in VAR.
timed() {
  local -n result=$1
  local begin=$EPOCHREALTIME
  shift
  "$@"
  result=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.0f", (b - a) * 1000 }')
}

go build -C "$here/../.." -o "$top/manifest" ./test/demo/manifest

say "A TypeScript project from npm in a git repository"
make_project "$project"
cp -a "$project" "$top/pristine"
git -C "$project" log --oneline --no-decorate | sed 's/^/  /'

say "Mount it in place, and take a checkpoint"
cd "$top"
show "hyperfs mount project"
"$hyperfs" mount "$project"
cd "$project"
git_status >"$top/status-before"
echo "  $("$top/manifest" save . "$top/manifest-before")"
show "hyperfs snapshot -m 'before the agent'"
timed hyperfs_save "$hyperfs" snapshot -m 'before the agent' >"$top/id"
echo "  $(cat "$top/id")"

say "Let tools loose that know nothing of checkpoints"
timed damage_ms damage show
echo "  $("$top/manifest" count "$top/manifest-before" .) names differ now"

say "See what they did"
show "hyperfs diff --name-status | grep -v '\.git/'"
"$hyperfs" diff --name-status >"$top/diff"
shown=15
grep -v '\.git/' "$top/diff" >"$top/diff-shown"
awk -v n="$(($(wc -l <"$top/diff-shown") / shown))" 'NR % n == 1' "$top/diff-shown" | sed 's/^/  /'
echo "  … $(wc -l <"$top/diff") in all"

say "Roll back"
show "hyperfs rollback"
timed hyperfs_restore "$hyperfs" rollback >"$top/rollback"
sed 's/^/  /' "$top/rollback"

say "Is it what it was?"
cd "$project"
"$top/manifest" compare "$top/manifest-before" .
echo "  every name: type, mode, owner, size, mtime in ns, checksum, symlink target, xattrs, hard links: identical"
git_status | cmp - "$top/status-before"
git fsck --no-progress >>"$log" 2>&1
echo "  git status says the same as before, git fsck finds nothing"
cd "$top"
show "hyperfs unmount project"
"$hyperfs" unmount "$project"
"$top/manifest" compare "$top/manifest-before" "$project"
echo "  and the directory itself, without hyperfs, is identical too"

say "The same project and the same damage, with other means (this takes a minute)"
compare_peers
