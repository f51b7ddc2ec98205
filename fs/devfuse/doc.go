// Package devfuse reads the requests of a FUSE connection from /dev/fuse, and has as few threads do that as can be. (See fs/fuse/dev.c of the kernel, whose
// fuse_dev_do_read sleeps on the connection's queue, exclusively: a new request wakes the sleeper that has been there for longest.)
//
// # Why it is faster
//
// While several threads sleep in read(2), each request wakes one of them, the next request another one: whoever has just given an answer, is awake and has all
// in its CPU's caches, is the last in turn. Where there is one reader, the program's next request is mostly there by the time that it reads again, and
// nobody needs to be woken. Spinning on a descriptor that does not block, and binding the reader to the program's CPU, brought next to nothing more.
//
// # How it is divided
//
// Workers are goroutines that read, answer, and read again. In general a few of them read at once, one at least, as any request may wait for
// another one that is not made yet. While a single program makes requests in quick succession the pool is narrow: one worker reads, and nobody does while it answers. That others
// are not kept waiting then is the watch's business. Every millisecond it looks what has been done: if it was nothing, as a worker is still at its request, somebody
// else gets to read; if requests come from several threads in turns, the pool is wide again; and if few come, it is wide again and the watch sleeps.
//
// Answers are written to the descriptor that requests are read from, notifications too.
package devfuse
