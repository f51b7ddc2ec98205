package test

import (
	"os"
	"testing"
)

// opensFlags gives flags for each way in which a mount has files opened: by the kernel alone, or by requests, and then with passthrough or without. One variant has no
// near reader.
func opensFlags(variant uint32) []string {
	if os.Getenv("HYPERFS_TEST_URING") != "" && variant%2 == 0 {
		return []string{"--open-requests"} // or there would be no io_uring
	}
	switch variant % 4 {
	case 1:
		return []string{"--passthrough"}
	case 2:
		return []string{"--no-near-reader"}
	case 3:
		return []string{"--open-requests", "--no-passthrough"}
	}
	return nil
}

// The daemon of an ordinary user can't open again what has lost its mode since a program has opened it, but has to.
func TestWhatAnOrdinaryUserHasOpenGoesOnWithoutItsMode(t *testing.T) {
	bin, ws, who := ordinaryWorkspace(t)
	scriptAs(t, who, []string{"HYPERFS=" + bin, "WS=" + ws}, `
		"$HYPERFS" mount "$WS"
		trap 'cd /; "$HYPERFS" unmount "$WS"' EXIT
		cd "$WS"
		mkdir d
		echo old >f; echo old >d/g; echo old >u
		id=$("$HYPERFS" snapshot)
		"$HYPERFS" version | grep -q 'no_open.*yes' || { "$HYPERFS" version; exit 1; }
		exec 3<>f 4<>d/g 5<>u 6<f
		chmod 0 f; chmod 0 d; rm u
		for i in $(seq 1200); do echo >n$i; done # the daemon closes what it had open
		echo new3 >&3; echo new4 >&4; echo new5 >&5
		[ "$(cat <&6)" = new3 ]
		[ "$(cat /proc/self/fd/5)" = new5 ]
		[ "$(stat -c %a f d)" = $'0\n0' ]
		chmod 600 f; chmod 700 d
		[ "$(cat f d/g)" = $'new3\nnew4' ]
		exec 3>&- 4>&- 5>&- 6>&-
		"$HYPERFS" rollback "$id"
		[ "$(cat f d/g u)" = $'old\nold\nold' ]
		[ "$(stat -c %a f d)" = $'644\n755' ]
	`)
}

// A file that was made without the right to write to it can be written to and cut by who has it open from making it, as cp and install make files.
func TestAnOrdinaryUserCutsWhatIsReadOnlyAndOpen(t *testing.T) {
	for name, flags := range map[string]string{"the kernel opens": "", "opens are asked for": "--open-requests"} {
		t.Run(name, func(t *testing.T) {
			bin, ws, who := ordinaryWorkspace(t, "/usr/bin/python3")
			scriptAs(t, who, []string{"HYPERFS=" + bin, "WS=" + ws, "FLAGS=" + flags}, `
				"$HYPERFS" mount $FLAGS "$WS"
				trap 'cd /; "$HYPERFS" unmount "$WS"' EXIT
				cd "$WS"
				id=$("$HYPERFS" snapshot)
				/usr/bin/python3 - <<-'END'
					import os
					def more():  # the daemon closes what it had open
					    for i in range(1200): open("n%d" % i, "w").write("x")
					fd = os.open("f", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444)
					os.write(fd, b"hello"); os.ftruncate(fd, 3)
					assert os.pread(fd, 9, 0) == b"hel"
					os.ftruncate(fd, 0); os.pwrite(fd, b"new", 0); more()
					os.ftruncate(fd, 2); assert os.pread(fd, 9, 0) == b"ne"; more()
					os.ftruncate(fd, 0); assert os.fstat(fd).st_size == 0
					os.pwrite(fd, b"again", 0)
					os.unlink("f"); more()
					os.ftruncate(fd, 4); assert os.pread(fd, 9, 0) == b"agai"; more()
					os.ftruncate(fd, 0); assert os.fstat(fd).st_size == 0
					assert os.fstat(fd).st_mode & 0o777 == 0o444
				END
				"$HYPERFS" rollback "$id"
				[ -z "$(ls)" ]
			`)
		})
	}
}
