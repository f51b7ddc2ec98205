"""Rewrites files the way a careless script does: in place, through a mapping, cut short, with other modes and times."""

import mmap
import os
import pathlib

ts = sorted(p for p in pathlib.Path("node_modules/typescript/lib").glob("*.d.ts"))
with open(ts[0], "r+b") as f:  # overwrites the start, keeps the rest
    f.write(b"// overwritten\n")
with open(ts[1], "r+b") as f, mmap.mmap(f.fileno(), 0) as m:  # stores into a shared mapping
    m[0:4] = b"XXXX"
os.truncate(ts[2], 10)
with open(ts[3], "ab") as f:
    f.write(b"// appended\n")
os.utime(ts[4], ns=(1, 1))

for directory, _, files in os.walk("node_modules/date-fns"):
    for name in files:
        if name.endswith(".d.ts"):
            os.chmod(os.path.join(directory, name), 0o600)

os.remove("notes/link-a.txt")  # one of two names of a file
os.rename("notes", "notes.old")
os.symlink("/nowhere", "notes")
os.remove(".env")
