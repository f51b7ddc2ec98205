package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

// userBranches is what an ordinary user does with branches in $WS, with $HYPERFS. A branch writes down where it stands; the virtual environments
// have absolute paths in them.
const userBranches = `
	cd "$WS"; mkdir sub; echo one >a; echo keep >sub/k; ln a sub/linked
	"$HYPERFS" mount .; cd .
	"$HYPERFS" fork left; "$HYPERFS" fork right
	for b in left right; do
		"$HYPERFS" exec --branch $b --timeout 1m --env OTHER=$([ $b = left ] && echo right || echo left) -- sh -euc '
			test "$(node -p "process.cwd()")" = "$WS"; echo there >here; : >"$MEET/$HYPERFS_BRANCH"; while [ ! -e "$MEET/$OTHER" ]; do sleep 0.1; done
			node -p "process.cwd()"; /usr/bin/python3 -m venv --without-pip v; echo "print(\"a tool\")" >v/bin/t.py; { echo "#!$PWD/v/bin/python"; cat v/bin/t.py; } >v/bin/tool; chmod +x v/bin/tool
			test "$(v/bin/tool)" = "a tool"; test "$(v/bin/python -c "import sys; print(sys.prefix)")" = "$WS/v"; grep -q "$WS/v" v/bin/activate
			echo "$HYPERFS_BRANCH" >>a; rm -r sub; "$HYPERFS" diff | grep -q "^D	sub/$"' >"$MEET/out-$b" 2>&1 &
		jobs="${jobs-} $!"
	done
	for job in $jobs; do wait $job || { cat "$MEET"/out-*; exit 1; }; done
	test "$(cat "$MEET/out-left")" = "$WS"; test "$(cat "$MEET/out-right")" = "$WS"
	test ! -e v; test ! -e here; test "$(cat a)" = one; test -e sub/linked
	at="$MEET/at, there"; mkdir "$at"; "$HYPERFS" mount --branch left --at "$at" .
	"$HYPERFS" status | grep -q "^branch left .*$at"; if "$HYPERFS" mount --branch right --at "$at" .; then exit 1; fi
	test "$(cat "$at/a")" = "one
left"
	echo up >"$at/up"; test "$(cat .hyperfs/branches/left/up)" = up; "$HYPERFS" diff --branch left | grep -q '^A	up$'
	rm .hyperfs/branches/left/up; test ! -e "$at/up"; test "$("$at/v/bin/python" -c 'print(1)')" = 1
	code=0; (cd "$at/v" && "$HYPERFS" status) 2>"$MEET/why" || code=$?; test $code = 5; grep -q "its branch left .*hyperfs -C $WS works" "$MEET/why"
	for dir in "$WS" "$at"; do code=0; (cd "$at"; "$HYPERFS" unmount "$dir" || exit $?; exit 0) || code=$?; test $code = 6; done; test -e "$at/a"
	"$HYPERFS" unmount "$at"; test -z "$(ls -A "$at")"; "$HYPERFS" mount --branch right --at "$at" .
	"$HYPERFS" merge left
	test "$(v/bin/tool)" = "a tool"; test "$(cat a)" = "one
left"
	code=0; "$HYPERFS" merge --on-conflict merge right || code=$?; test $code = 3
	"$HYPERFS" drop-branch right
	if cat "$at/a" || echo >"$at/new"; then exit 1; fi
	"$HYPERFS" undo
	test ! -e v; test "$(stat -c %h a)" = 2; test ! -e here
	"$HYPERFS" fsck --deep
	cd /; "$HYPERFS" unmount "$WS"; test -z "$(ls -A "$at")"
	"$HYPERFS" mount "$WS"; "$HYPERFS" -C "$WS" fork last; "$HYPERFS" mount --branch last --at "$at" "$WS"; test -e "$at/sub/k"
	kill -9 $("$HYPERFS" -C "$WS" status --json | /usr/bin/python3 -c 'import json,sys; print(json.load(sys.stdin)["daemon"]["pid"])')
	while cat "$at/a" 2>/dev/null; do sleep 0.1; done
	"$HYPERFS" mount "$WS"; test -z "$(ls -A "$at")"; "$HYPERFS" mount --branch last --at "$at" "$WS"; test -e "$at/sub/k"; "$HYPERFS" unmount "$WS"`

func TestAnOrdinaryUserWorksInTwoBranchesAtOnce(t *testing.T) {
	t.Parallel()
	bin, ws, who := ordinaryWorkspace(t, "node", "/usr/bin/python3")
	meet := memory(t)
	if who != nil {
		if err := os.Chown(meet, int(who.Uid), int(who.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = detach(ws) }) // if something fails before
	scriptAs(t, who, []string{"HYPERFS=" + bin, "WS=" + ws, "MEET=" + meet, "HOME=" + meet}, userBranches)
}

// othersThings is what an ordinary user does in $WS with what has a group that they are not in, or another owner, in main and in branches.
const othersThings = `
	same() { test "$(stat -c '%n %u:%g' large kept dir theirs shared)" = "$WAS"; }
	cd "$WS"; WAS=$(stat -c '%n %u:%g' large kept dir theirs shared); "$HYPERFS" mount .; cd .; first=$("$HYPERFS" snapshot)
	echo more >>large; chmod 600 kept; touch dir/new; echo n >shared/n
	"$HYPERFS" rollback; same; test "$(tail -n1 large)" = 20000; test "$(stat -c %a kept)" = 640; test ! -e dir/new; test ! -e shared/n
	"$HYPERFS" undo; same; test "$(tail -n1 large)" = more; "$HYPERFS" rollback
	"$HYPERFS" fork one; "$HYPERFS" fork two; cd .hyperfs/branches/one
	echo more >>large; echo more >>theirs; chmod 600 kept; touch dir/new; echo n >shared/n; mkdir shared/below; same
	test "$(stat -c %g shared/n shared/below)" = "$(stat -c %g shared shared)"; chgrp "$(stat -c %g kept)" kept; same
	if chgrp 7 kept || chown 7 kept; then exit 1; fi
	cd "$WS"; "$HYPERFS" snapshot --branch one; cd /; "$HYPERFS" unmount "$WS"; "$HYPERFS" mount "$WS"; cd "$WS"
	cd .hyperfs/branches/one; same; test "$(tail -n1 theirs)" = more; echo more >>large; same
	"$HYPERFS" -C "$WS" diff --branch one "$first"
	chgrp "$(id -g)" kept; test "$(stat -c %g kept)" = "$(id -g)"; cd "$WS"; same
	"$HYPERFS" rollback --branch one; (cd .hyperfs/branches/one; same); cd "$WS"
	code=0; "$HYPERFS" merge one 2>"$MEET/why" || code=$?; test $code != 0; grep -q "theirs: it belongs to user" "$MEET/why"; same; test "$(tail -n1 large)" = 20000
	cd .hyperfs/branches/two; echo two >>large; echo n >shared/n; chmod 600 kept; cd "$WS"; "$HYPERFS" merge two
	same; test "$(tail -n1 large)" = two; test "$(stat -c %a kept)" = 600; test -e shared/n
	"$HYPERFS" undo; same; test "$(tail -n1 large)" = 20000; test ! -e shared/n
	echo more >>theirs; echo more >>large
	code=0; "$HYPERFS" rollback "$first" 2>"$MEET/why" || code=$?; test $code != 0; grep -q "theirs: it belongs to user" "$MEET/why"; test "$(tail -n1 large)" = more
	"$HYPERFS" fsck --deep; cd /; "$HYPERFS" unmount "$WS"`

func TestAnOrdinaryUserChangesWhatHasAGroupOfOthers(t *testing.T) {
	t.Parallel()
	needMount(t)
	who := ordinaryUser(t)
	if who == nil {
		t.Skip("only root can make what belongs to others")
	}
	openDevice(t)
	bin, err := checked.path()
	if err != nil {
		t.Fatal(err)
	}
	ws, meet := newWorkspace(t), memory(t)
	for _, dir := range []string{filepath.Dir(bin), filepath.Dir(ws)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"HYPERFS=" + bin, "WS=" + ws, "MEET=" + meet, "HOME=" + meet, fmt.Sprintf("OWN=%d", who.Uid)}
	script(t, ws, env, `seq 20000 >large; echo k >kept; chmod 640 kept; mkdir dir shared; echo t >theirs
		chown "$OWN:1" . large kept dir shared "$MEET"; chown 0:1 theirs; chmod 666 theirs; chmod 2775 shared`)
	t.Cleanup(func() { _ = detach(ws) }) // if something fails before
	scriptAs(t, who, env, othersThings)
}

// The tools that somebody looks at the past with. $VIEW is a checkpoint in the mount, $WANT a plain copy of what it was.
const lookAtThePast = `
	diff -r --no-dereference "$WANT" "$VIEW"
	git -c core.fileMode=true diff --no-index --exit-code "$WANT" "$VIEW"
	rm -rf "$COPY"; cp -a "$VIEW" "$COPY"
	for dir in "$WANT" "$VIEW"; do
		cd "$dir"; find . ! -type d -printf '%p %y %m %s %l %n %U %G %T@\n' -o -printf '%p %m %U %G %T@\n' | sort >"$COPY.$(basename "$dir")"
	done
	cmp "$COPY.$(basename "$WANT")" "$COPY.$(basename "$VIEW")"
	if touch "$VIEW/new" 2>/dev/null || sh -c 'echo x >>"$VIEW/text/2"' 2>/dev/null; then exit 1; fi`

func TestToolsSeeAnOldStateWhileMainGoesOn(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws, spare := newWorkspace(t), memory(t)
	script(t, ws, nil, `mkdir -p text deep/er/still; for i in $(seq 40); do seq $((i * 30)) >text/$i; done; ln text/1 deep/one; ln text/1 deep/er/one
		ln -s ../text deep/link; ln -s nowhere broken; chmod 750 deep/er; chmod 600 text/2; echo t >deep/thing; head -c 300000 /dev/urandom >deep/er/still/big
		truncate -s 2M hole; touch -d '2001-02-03 04:05:06.789012345' text/3 deep/er; mkdir empty`)
	sub := mountForTest(t, ws, mountOptions{})
	type saved struct{ id, want string }
	var past []saved
	look := func(when string) {
		for _, s := range past {
			view := filepath.Join(sub.dir, ".hyperfs/checkpoints", s.id)
			script(t, spare, []string{"WANT=" + s.want, "VIEW=" + view, "COPY=" + filepath.Join(spare, "copy"), "LC_ALL=C", "GIT_CONFIG_GLOBAL=/dev/null"}, lookAtThePast)
			want := plainState(t, s.want)
			for _, dir := range []string{view, filepath.Join(spare, "copy")} {
				if diff := treestate.Diff(want, plainState(t, dir)); len(diff) > 0 {
					t.Fatalf("%s, %s is not what %s was:\n\t%s", when, dir, s.id, strings.Join(diff, "\n\t"))
				}
			}
		}
	}
	for i, change := range []string{
		`rm text/1?; sed -i s/7/seven/ text/2; echo more >>text/1; mv deep/er moved; printf x | dd of=moved/still/big bs=1 seek=70000 conv=notrunc status=none; rmdir empty`,
		`mv moved/still .; ln text/1 again; rm deep/one; chmod 700 still; rm -r text; mkdir text; echo new >text/1; printf y | dd of=hole bs=1 seek=1000000 conv=notrunc status=none`,
		`ln -sfn text deep/link; mv again deep/one; rm deep/thing; mkdir deep/thing; rm -rf still; truncate -s 10 hole; touch broken2`,
	} {
		s := saved{want: filepath.Join(spare, "want"+string(rune('0'+i)))}
		if err := treestate.Copy(sub.dir, s.want); err != nil {
			t.Fatal(err)
		}
		s.id = mustSnapshot(t, sub)
		past = append(past, s)
		look("before " + change) // so that the kernel has it in its caches
		script(t, sub.dir, nil, change)
		look("after " + change)
	}
	now := captureOf(t, sub)
	if _, err := sub.Rollback(past[0].id, false); err != nil {
		t.Fatal(err)
	}
	look("after a rollback")
	if _, err := sub.Undo(); err != nil {
		t.Fatal(err)
	}
	look("after the undo")
	mustBe(t, sub, now, "after the undo")
}
