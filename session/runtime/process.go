package runtime

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session/runtime/internal/js"
)

// Kind is a runtime that is a process of its own.
type Kind string

// The kinds. Node needs Node.js 18 or later, CPython Python 3.8.
const (
	Node    Kind = "node"
	CPython Kind = "python3"
)

// Running is a process that a Starter has started.
type Running interface {
	// Wait waits until it and all that it has started have ended, and says how it ended: never nil. It may be called once.
	Wait() error
	// Kill makes it end. It does not wait.
	Kill()
}

// Starter starts a program with these standard streams. It does not close the files, and passes nothing else on.
type Starter func(args []string, stdin, stdout, stderr *os.File) (Running, error)

// process is a session in a process of its own. It is an Adopter if its language is JavaScript: see Start.
type process struct {
	kind     Kind
	language string
	limits   Limits
	running  Running
	conn     net.Conn
	out, err *stream
	reserved map[string]bool
	names    []string // reserved

	funcs Functions

	turn    chan struct{} // has room for who has a request under way
	writing sync.Mutex    // guards writes to conn

	base   context.Context // of calls; ends with the session
	cancel context.CancelFunc
	ended  chan struct{} // closed when nothing is left

	mu      sync.Mutex // guards what follows
	lastID  int64
	reply   chan<- message  // of the request under way, whose ID is lastID
	run     context.Context // of the calls that this request makes; ends when it is interrupted
	calls   int
	closed  bool
	why     error // first reason to end
	deathOf error // set before ended is closed
}

//go:embed node.js
var nodeDriver string

//go:embed python.py
var pythonDriver string

// arguments gives the command that runs the driver. The shell moves the socket away from the standard input: a Node.js program could not do it.
func arguments(kind Kind, program string, l Limits) ([]string, error) {
	if program == "" {
		program = string(kind)
	}
	args := []string{"sh", "-c", `exec "$@" 3<&0 0</dev/null`, "sh", program}
	switch kind {
	case Node:
		if l.Memory > 0 {
			args = append(args, "--max-old-space-size="+strconv.FormatInt(max(l.Memory>>20, 1), 10))
		}
		globals, err := json.Marshal(js.Globals)
		if err != nil {
			return nil, err
		}
		return append(args, "-e", strings.Replace(nodeDriver, "__GLOBALS__", string(globals), 1)), nil
	case CPython:
		return append(args, "-c", pythonDriver), nil
	}
	return nil, errs.New(errs.Usage, opStart, string(kind), "there is no such runtime")
}

// adopting is a process that both phases can have.
type adopting struct{ *process }

// Start starts a runtime in a process. program is the one to run, "" for the kind's own name, found by start. ctx is for the start alone. A session of Node.js is
// an Adopter.
//
// Errors: those of start; USAGE for limits; EXEC for a program that isn't such a runtime; UNSUPPORTED where this system has none.
func Start(ctx context.Context, kind Kind, program string, start Starter, l Limits) (CodeSession, error) {
	l, err := l.Complete()
	if err != nil {
		return nil, err
	}
	args, err := arguments(kind, program, l)
	if err != nil {
		return nil, err
	}
	p := &process{
		kind: kind, language: JavaScript, limits: l, turn: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	if kind == CPython {
		p.language = Python
	}
	p.base, p.cancel = context.WithCancel(context.Background())
	if err := p.spawn(args, start); err != nil {
		p.cancel()
		return nil, err
	}
	if err := p.hello(ctx); err != nil {
		p.Close()
		return nil, err
	}
	if kind == Node {
		return adopting{p}, nil
	}
	return p, nil
}

// spawn starts the process and what reads from it.
func (p *process) spawn(args []string, start Starter) error {
	c, err := newChannels()
	if err != nil {
		return err
	}
	p.running, err = start(args, c.theirs, c.stdout, c.stderr)
	c.closeTheirs()
	if err != nil {
		c.conn.Close()
		c.out.close()
		c.err.close()
		return err
	}
	p.conn, p.out, p.err = c.conn, c.out, c.err
	var reading sync.WaitGroup
	for _, s := range []*stream{p.out, p.err} {
		s.limit = p.limits.Output
		reading.Go(s.copy)
	}
	lost := make(chan error, 1)
	reading.Go(func() { lost <- p.listen() })
	go func() {
		how := make(chan error, 1)
		go func() { how <- p.running.Wait() }()
		var died error
		select {
		case died = <-how:
			p.end(nil)
		case err := <-lost: // it has closed the socket, or sent what is no message
			if err != io.EOF {
				p.end(err)
			}
			select {
			case died = <-how:
			case <-time.After(p.limits.Grace):
				p.running.Kill()
				died = <-how
			}
		}
		p.conn.Close()
		p.out.close()
		p.err.close()
		reading.Wait()
		p.finish(died)
	}()
	return nil
}

// end ends the process, for the reason why unless there was one before.
func (p *process) end(why error) {
	p.mu.Lock()
	if p.why == nil {
		p.why = why
	}
	p.mu.Unlock()
	p.cancel()
	p.running.Kill()
}

// finish notes how the process ended, when nothing is left of it.
func (p *process) finish(died error) {
	p.mu.Lock()
	switch {
	case p.closed:
		p.deathOf = Closed()
	case p.why != nil:
		p.deathOf = Died(p.why)
	default:
		p.deathOf = Died(died)
	}
	p.mu.Unlock()
	p.cancel()
	close(p.ended)
}

// listen takes what the driver sends, until the end.
func (p *process) listen() error {
	r := bufio.NewReaderSize(p.conn, 64<<10)
	for {
		m, err := readMessage(r, p.limits.Value+1<<20) // texts around the value
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || isReset(err) {
				err = io.EOF
			}
			return err
		}
		if m.Call != 0 {
			p.called(m)
			continue
		}
		p.mu.Lock()
		to := p.reply
		if m.ID == p.lastID {
			p.reply = nil
		}
		if to == nil || m.ID != p.lastID {
			p.mu.Unlock()
			return fmt.Errorf("it replied to the request %d, which nobody has made", m.ID)
		}
		p.mu.Unlock()
		to <- m
	}
}

// called calls a function of the host.
func (p *process) called(m message) {
	p.mu.Lock()
	run := p.run
	many := p.calls >= MaxCalls
	if !many {
		p.calls++
	}
	p.mu.Unlock()
	if many {
		p.answer(m.Call, nil, fmt.Errorf("more than %d calls are under way", MaxCalls))
		return
	}
	go func() {
		ctx, cancel := context.WithCancel(p.base)
		defer cancel()
		defer context.AfterFunc(run, cancel)()
		v, err := p.funcs.Call(ctx, p.limits, p.language, m.Fn, m.Args)
		p.mu.Lock()
		p.calls--
		p.mu.Unlock()
		p.answer(m.Call, v, err)
	}()
}

// answer sends the answer to a call.
func (p *process) answer(call int64, v json.RawMessage, err error) {
	a := answer{Return: call, Value: v}
	if err != nil {
		a.Error = new(err.Error())
	}
	if f, err := frame(frameMessage, a); err == nil {
		_ = p.write(f) // who is gone misses nothing
	}
}

func (p *process) write(frame []byte) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err := p.conn.Write(frame)
	return err
}

// ask makes a request and waits for its reply.
func (p *process) ask(ctx context.Context, q request) (json.RawMessage, error) {
	if err := p.enter(ctx); err != nil {
		return nil, err
	}
	defer func() { <-p.turn }()
	return p.askInTurn(ctx, q)
}

// enter waits for the end of requests before.
func (p *process) enter(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
	case <-p.ended:
		return p.Err()
	case <-ctx.Done():
		return Interrupted(ctx)
	}
	if ctx.Err() != nil {
		<-p.turn
		return Interrupted(ctx)
	}
	return nil
}

func (p *process) askInTurn(ctx context.Context, q request) (json.RawMessage, error) {
	reply := make(chan message, 1)
	run, interrupt := context.WithCancel(context.Background()) // what it calls may go on when it is over
	p.mu.Lock()
	p.lastID++
	q.ID = p.lastID
	p.mu.Unlock()
	f, err := frame(frameMessage, q)
	if err != nil {
		interrupt()
		return nil, errs.Wrap(errs.Usage, opRun, q.Name, err)
	}
	p.mu.Lock()
	p.reply, p.run = reply, run
	p.mu.Unlock()
	over := make(chan struct{})
	defer close(over)
	defer context.AfterFunc(ctx, func() {
		interrupt()
		p.interrupt(q.ID, over)
	})()
	_ = p.write(f) // if it fails, the process is ending
	select {
	case m := <-reply:
		switch {
		case m.Interrupted, m.Threw != nil && ctx.Err() != nil: // what it asked of the host has failed with the context
			return nil, Interrupted(ctx)
		case m.Threw != nil:
			return nil, Threw(m.Threw)
		}
		return m.Result, nil
	case <-p.ended:
		return nil, p.Err()
	}
}

// interrupt ends a request that is under way, and if it doesn't within the grace period, the session.
func (p *process) interrupt(id int64, over <-chan struct{}) {
	go func() {
		if f, err := frame(frameInterrupt, request{ID: id}); err == nil {
			_ = p.write(f)
		}
	}()
	timer := time.NewTimer(p.limits.Grace)
	defer timer.Stop()
	select {
	case <-over:
	case <-p.ended:
	case <-timer.C:
		p.end(fmt.Errorf("the program was interrupted and did not stop within %v", p.limits.Grace))
	}
}

// hello tells the driver the limits, and finds out what there is.
func (p *process) hello(ctx context.Context) error {
	raw, err := p.ask(ctx, request{Op: "hello", Value: p.limits.Value, Entry: p.limits.Entry, Memory: p.limits.Memory})
	if err != nil {
		if said := strings.TrimSpace(string(p.err.take().text)); said != "" && ctx.Err() == nil {
			err = errs.New(errs.Exec, opStart, string(p.kind), "%w: %s", err, said[max(0, len(said)-1000):])
		}
		return err
	}
	var h struct{ Names []string }
	if err := json.Unmarshal(raw, &h); err != nil {
		return errs.Wrap(errs.Exec, opStart, string(p.kind), err)
	}
	p.names, p.reserved = h.Names, map[string]bool{}
	for _, n := range h.Names {
		p.reserved[n] = true
	}
	return nil
}

// Done implements CodeSession.
func (p *process) Done() <-chan struct{} { return p.ended }

// Err implements CodeSession.
func (p *process) Err() error {
	select {
	case <-p.ended:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Closed()
	}
	return p.deathOf
}

// Close implements CodeSession. Functions of the host that the program has called are told by their context, and not waited for.
func (p *process) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end(nil)
	<-p.ended
	return nil
}
