// Package devfuse reads the requests of a FUSE connection from /dev/fuse, and has as few threads do that as can be. (See fs/fuse/dev.c of the kernel, whose
// fuse_dev_do_read sleeps on the connection's queue, exclusively: a new request wakes the sleeper that has been there for longest.)
//
// # Why it is faster
//
// While several threads sleep in read(2), each request wakes one of them, the next request another one: whoever has just given an answer, is awake and has all
// in its CPU's caches, is the last in turn. Where there is one reader, the program's next request is mostly there by the time that it reads again, and
// nobody needs to be woken.
//
// What is left is that two threads take turns on two CPUs, one of which sleeps each time, and has to be woken by an interrupt. On the same CPU they change places by mere switches, in
// half the time. To bind the reader to the program's CPU is not enough: when the program has its answer the reader still runs there, so the kernel wakes
// the program on another CPU that has nothing to do. But it takes a CPU for idle where nothing runs except threads of the policy SCHED_IDLE. So while the pool is narrow and neither requests
// nor answers are large, one worker reads that has this policy and is where the program is: see near.
//
// Still the kernel now and then wakes the program on another CPU: where a thread has just gone to sleep on that of the two, or where one runs on the other. To follow it each time would cost more than the
// switches save, as all that both of them have in their CPU's caches would have to move, too. So first of all the program is made to come back: see kicker.
//
// # How it is divided
//
// Workers are goroutines that read, answer, and read again. In general a few of them read at once, one at least, as any request may wait for
// another one that is not made yet. While a single program makes requests in quick succession the pool is narrow: one worker reads, and nobody does while it answers. That others
// are not kept waiting then is the watch's business. Every millisecond it looks what has been done: if it was nothing, as a worker is still at its request, somebody
// else gets to read; if requests come from several threads in turns, the pool is wide again; and if few come, it is wide again and the watch sleeps.
//
// The near worker is one of its own, as a thread of an ordinary user can't go back from SCHED_IDLE. Any other thread has its CPU before it has. So it does not sleep in read(2), where a
// request would be its own: it reads a descriptor that does not block, and polls that. While it is to read, the watch goes on, and looks whether there is a request that it has not read for a tick, or that it has and does not
// get on with. Then somebody else reads too; the watch lets it run on any CPU, as other threads do where we may say so, and rings a bell if it polls; and it is not to be near for a while, each time for longer unless it was worthwhile before. When nothing
// has come for some time it has to go as well. A lock that it holds when it loses its CPU, of ours or of Go's runtime, may keep others waiting for some tens of milliseconds at most (see slice).
//
// Answers are written to the descriptor that requests are read from, notifications to that of the connection.
package devfuse
