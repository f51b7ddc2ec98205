# Makes the demo's project: rxjs from source in TypeScript, with its tools, in a git repository of three commits. Sourced.

# The lock files name no registry.
npm_quiet() { npm "$@" --no-audit --no-fund --omit-lockfile-registry-resolved --ignore-scripts --loglevel=error >>"$log" 2>&1; }

make_project() {
  mkdir "$1"
  cd "$1"
  printf '{ "name": "demo", "version": "1.0.0", "private": true }\n' >package.json
  printf 'node_modules/\ndist/\n.env\n' >.gitignore
  cat >tsconfig.json <<'JSON'
{
  "compilerOptions": {
    "target": "es2020", "module": "commonjs", "lib": ["es2020", "dom"], "types": [], "skipLibCheck": true,
    "declaration": true, "sourceMap": true, "outDir": "dist", "rootDir": "src"
  },
  "include": ["src/**/*.ts"], "exclude": ["src/internal/umd.ts"]
}
JSON
  git init -q
  commit 'start'
  npm_quiet install typescript@5.9 tslib@2 rxjs@7.8 eslint@9 prettier@3 date-fns@4 @types/node@20
  commit 'dependencies'
  cp -r node_modules/rxjs/src src
  rm src/tsconfig*.json
  commit 'the sources'
  work_in_progress
}

# What git doesn't know, or not yet.
work_in_progress() {
  echo 'export const VERSION = "next";' >src/version.ts
  echo '// half done' >>src/index.ts
  git add src/index.ts
  echo '// and more' >>src/index.ts
  echo 'TOKEN=secret' >.env
  chmod 600 .env
  mkdir -p notes empty/dir
  echo 'two names, one file' >notes/link-a.txt
  ln notes/link-a.txt notes/link-b.txt
  ln -s ../src notes/src
}

commit() {
  git add -A
  git -c user.name=demo -c user.email=demo@example.org commit -q -m "$1"
}

# damage SHOW: real tools, none of which knows about checkpoints. SHOW is called with each command.
damage() {
  local show=$1
  "$show" 'npm install express lodash';                     npm_quiet install express@4 lodash@4
  "$show" 'npx tsc';                                         npx tsc >>"$log" 2>&1 || true # with type errors; it writes dist all the same
  "$show" "sed -i 's/Observable/Unobservable/g' src/**/*.ts"; find src -name '*.ts' -exec sed -i 's/Observable/Unobservable/g' {} +
  "$show" 'python3 rewrite.py';                              python3 "$here/rewrite.py"
  "$show" 'git commit -a';                                   commit 'oops'
  "$show" 'git gc --prune=now';                              git reflog expire --expire=now --all; git gc -q --prune=now
  "$show" 'mv node_modules/eslint vendor';                   mv node_modules/eslint vendor
  "$show" 'rm -rf src node_modules/typescript';              rm -rf src node_modules/typescript
}
