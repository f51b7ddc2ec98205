package runtime

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Kinds of frames.
const (
	frameMessage   = 'm'
	frameInterrupt = 'i'
)

const frameHead = 5

// request is what a driver is asked. Which fields count is for Op to say.
type request struct {
	ID    int64    `json:"id"`
	Op    string   `json:"op,omitempty"`
	Code  string   `json:"code"`
	Name  string   `json:"name,omitempty"`
	Names []string `json:"names,omitempty"`
	Fn    int64    `json:"fn,omitempty"`

	Aliases  []string         `json:"aliases,omitempty"`
	Values   map[string]Wired `json:"values,omitempty"`
	Entries  []Entry          `json:"entries,omitempty"`
	Boundary *Boundary        `json:"boundary,omitempty"`

	// The limits, with hello.
	Value  int   `json:"value,omitempty"`
	Entry  int   `json:"entry,omitempty"`
	Memory int64 `json:"memory"`
}

// answer is the answer to a call of the program.
type answer struct {
	Return int64           `json:"return"`
	Value  json.RawMessage `json:"value,omitempty"`
	Error  *string         `json:"error,omitempty"`
}

// message is what a driver sends: a reply to the request ID, or a Call of a function.
type message struct {
	ID          int64           `json:"id"`
	Result      json.RawMessage `json:"result"`
	Threw       *ProgramError   `json:"threw"`
	Interrupted bool            `json:"interrupted"`

	Call int64             `json:"call"`
	Fn   int64             `json:"fn"`
	Args []json.RawMessage `json:"args"`
}

// maxFrame is the most that a frame may hold. What is in one is bounded by Limits.Value, far below.
const maxFrame = 1<<31 - 1

// frame gives a frame with v as JSON.
func frame(kind byte, v any) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, frameHead, 512))
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	n := b.Len() - frameHead
	if n > maxFrame {
		return nil, fmt.Errorf("it takes %d bytes, and a message has no more than %d", n, maxFrame)
	}
	binary.BigEndian.PutUint32(b.Bytes(), uint32(n))
	b.Bytes()[4] = kind
	return b.Bytes(), nil
}

// readMessage reads the next frame.
func readMessage(r *bufio.Reader, limit int) (m message, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n > limit || head[4] != frameMessage {
		return m, fmt.Errorf("it sent a frame of kind %q with %d bytes, which it may not", head[4], n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return m, err
	}
	return m, json.Unmarshal(body, &m)
}
