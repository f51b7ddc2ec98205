#!/usr/bin/env bash
# Runs what hyperfs is on Windows, built here, under Wine: the tests of portable packages, and the command line as a user and
# other programs meet it. The Windows that it makes for that is in a temporary directory, and ends with it.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PATH:/usr/lib/wine"
for command in wine64 wineserver x86_64-w64-mingw32-gcc script; do
  command -v "$command" >/dev/null || { echo "$command is missing: bash .ci/setup wine installs it" >&2; exit 1; }
done

work=$(mktemp -d)
export WINEPREFIX="$work/prefix" WINEDEBUG=-all WINEDLLOVERRIDES='mscoree,mshtml=' GOOS=windows GOARCH=amd64 CGO_ENABLED=0
export LC_ALL=C.UTF-8 # what names outside ASCII are on the disk: Wine has them as the locale says
unset DISPLAY
trap 'timeout 20 wineserver -k || true; rm -rf "$work"' EXIT

timeout 120 wine64 wineboot --init >"$work/wineboot.log" 2>&1 &
boot=$!

# Wine 8 does not know the request by which package os removes a file relative to a directory, and says so in another way
# than the systems do for which Go has a fallback. Tests remove their directories so. The program itself is built as it is.
at="$(go env GOROOT)/src/internal/syscall/windows/at_windows.go"
sed 's/^var TestDeleteatFallback bool/var TestDeleteatFallback = true/' "$at" >"$work/at_windows.go"
grep -q '^var TestDeleteatFallback = true' "$work/at_windows.go"
printf '{"Replace":{"%s":"%s"}}\n' "$at" "$work/at_windows.go" >"$work/overlay.json"

go build -trimpath -o "$work/hyperfs.exe" ./cmd/hyperfs
packages='strategy checkpoint overlay/scan control session session/attempt internal/crash test/wine'
for package in $packages; do
  go test -c -overlay "$work/overlay.json" -o "$work/${package//\//-}.test.exe" "./$package"
done
wait "$boot" || { cat "$work/wineboot.log" >&2; exit 1; }
x86_64-w64-mingw32-gcc -shared -O1 -o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll" test/wine/dll/bcryptprimitives.c -ladvapi32

mkdir "$WINEPREFIX/drive_c/run"
mv "$work"/*.exe "$WINEPREFIX/drive_c/run/"
cd "$WINEPREFIX/drive_c/run"
export HYPERFS_EXE='C:\run\hyperfs.exe'

# run NAME ARG…: the tests of a package. What is left out needs what Wine does not have.
run() {
  local name=$1 start=$SECONDS
  shift
  if timeout 310 wine64 "C:\\run\\$name.test.exe" -test.timeout 300s "$@" >"$name.log" 2>&1; then
    echo "ok   $name ($((SECONDS - start)) s)"
  else
    echo "FAIL $name"
    cat "$name.log"
    touch failed
  fi
}

# interrupted: Ctrl-C on a terminal is for the command that run runs, which ends with 3 then; what it did is rolled back.
# The shell that script starts becomes the program: a plain sh would stay, and end of the same Ctrl-C.
interrupted() {
  local code=0
  mkdir interrupted
  mkfifo keys
  printf one >interrupted/a.txt
  HYPERFS_TEST_INTERRUPTED=a.txt TERM=xterm timeout 60 \
    script -qec "cd interrupted && exec wine64 'C:\\run\\hyperfs.exe' run -- 'C:\\run\\test-wine.test.exe'" /dev/null <keys >interrupted.log 2>&1 &
  exec 3>keys
  for _ in $(seq 300); do
    [ "$(cat interrupted/a.txt)" != damaged ] || break
    sleep 0.1
  done
  printf '\003' >&3
  wait $! || code=$?
  exec 3>&-
  if [ "$code" = 3 ] && [ "$(cat interrupted/a.txt)" = one ]; then
    echo "ok   interrupted"
  else
    echo "FAIL interrupted: it ends with $code, and the file holds: $(cat interrupted/a.txt)"
    cat interrupted.log
    touch failed
  fi
}

run overlay-scan -test.short &
{
  run strategy -test.run 'TestPureManifestConforms$|TestLinkConforms|Scan|Sum'
  run checkpoint
  run control -test.run Pipe
  run session-attempt
  run session
  run internal-crash
  run test-wine -test.v
  interrupted
} &
wait
[ ! -e failed ]
