# Read by the hooks: the event, which is JSON on stdin, and where a session's checkpoint is noted.

event=$(cat)

# text NAME gives a top-level string of the event, or nothing.
text() { printf %s "$event" | jq -r --arg name "$1" '.[$name] | strings'; }

workspace=$(text cwd)
workspace=${workspace:-$PWD}
session=$(text session_id | tr -cd 'A-Za-z0-9_-')
session=${session:-session}
notes=${HYPERFS_HOOK_NOTES:-${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}/hyperfs-hooks-$(id -u)}
note=$notes/$session
umask 077
mkdir -p "$notes" && [ -O "$notes" ] || exit 2

hfs() { hyperfs -C "$workspace" "$@"; }
