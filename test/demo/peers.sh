# Other ways to go back, on copies of the same project. Sourced by demo.sh.

# Each way has two functions: how a checkpoint is made, and how it is gone back to. Both run in the project.
save_copy() { cp -a "$peer" "$top/copy"; }
restore_copy() {
  find . -mindepth 1 -delete
  cp -a "$top/copy/." .
}
save_stash() {
  git -c user.name=demo -c user.email=demo@example.org stash push -q -u >>"$log" 2>&1
  git stash apply -q --index >>"$log" 2>&1
  git rev-parse HEAD stash@{0} >"$top/stashed"
}
restore_stash() {
  local head stash
  { read -r head; read -r stash; } <"$top/stashed"
  git reset -q --hard "$head" >>"$log" 2>&1
  git clean -fdq >>"$log" 2>&1
  git stash apply -q --index "$stash" >>"$log" 2>&1
}
save_reset() { git rev-parse HEAD >"$top/head"; }
restore_reset() {
  git reset -q --hard "$(cat "$top/head")" >>"$log" 2>&1
  git clean -fdxq >>"$log" 2>&1
}

row() { printf '  %-34s %9s %9s %9s  %s\n' "$@"; }

# measure_peer NAME TITLE: makes a copy of the project, saves, damages, restores, and prints a row.
measure_peer() {
  local name=$1 title=$2 saved restored left
  peer=$top/peer
  cp -a "$top/pristine" "$peer"
  cd "$peer"
  timed saved "save_$name"
  damage :
  if timed restored "restore_$name"; then :; fi
  left=$("$top/manifest" count "$top/manifest-before" .)
  row "$title" "$saved ms" "$restored ms" "$left" "$3"
  cd "$top"
  rm -rf "$peer" "$top/copy"
}

compare_peers() {
  row '' checkpoint 'go back' 'differing' 'what did not come back'
  row 'hyperfs snapshot, rollback' "$hyperfs_save ms" "$hyperfs_restore ms" 0 'nothing'
  measure_peer copy 'cp -a, delete, cp -a' 'nothing; but a second copy of everything'
  measure_peer stash 'git stash -u, reset, clean, apply' 'all that git ignores (node_modules, .env), dist stays, .git, times, links'
  measure_peer reset 'git reset --hard, clean -fdx' 'uncommitted work; node_modules and .env deleted; .git, times'
  echo "  (differing: names of which anything differs from the checkpoint; mtimes of directories count)"
}
