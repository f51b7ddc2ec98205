package strategy

import "sync"

const (
	smallSize = 64 << 10  // bytes: files up to here are read at once
	largeSize = 512 << 10 // bytes
	maxLarge  = 16        // large buffers in use at a time; more copies wait
)

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallSize]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeSize]byte) }}
	largeSlots   = make(chan struct{}, maxLarge)
)

// withBuffer calls fn with a buffer that suits a file of size bytes. The buffer holds old bytes, and is nobody's after fn.
// fn must not ask for another one, or those who have one might wait for each other.
func withBuffer(size int64, fn func(buf []byte) error) error {
	if size <= smallSize {
		b := smallBuffers.Get().(*[smallSize]byte)
		defer smallBuffers.Put(b)
		return fn(b[:])
	}
	largeSlots <- struct{}{}
	defer func() { <-largeSlots }()
	b := largeBuffers.Get().(*[largeSize]byte)
	defer largeBuffers.Put(b)
	return fn(b[:])
}
