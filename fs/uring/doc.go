// Package uring takes the requests of a FUSE connection from io_uring instead of reading them from /dev/fuse (Linux 6.14 and later, where the
// module's parameter enable_uring is set; see Documentation/filesystems/fuse/fuse-io-uring.rst and fs/fuse/dev_uring.c of the kernel).
//
// # Why it is faster
//
// Whoever reads /dev/fuse is woken wherever the scheduler likes, mostly on another CPU, which has to be fetched out of its idle state by an
// interrupt; and so is the program that waits for the answer. Here every CPU has a queue of its own, served by threads bound to it: program
// and server take turns on one CPU. And one system call both gives an answer and waits for the next request.
//
// # How it is divided
//
// A queue has entries. An entry is a place in memory for one request and its answer, and belongs to the kernel while it is registered or
// committed, and to the server from when its completion arrives. Here each entry has a worker: a goroutine on a thread of its own, with a
// ring of its own. So a worker that blocks in a request delays no other one, and the kernel only ever gives a request to a worker that waits. When the
// last waiting worker of a queue takes a request it starts another: a request may wait for one that is not made yet, as it may with /dev/fuse.
//
// FORGET and INTERRUPT still come by /dev/fuse, and what there is before all queues are registered; so do notifications go.
package uring
