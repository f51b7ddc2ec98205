package session

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/hyperfs/hyperfs/session/runtime"
)

// SharedRuntime coordinates one code session over two phases: see package runtime.
type SharedRuntime = runtime.Shared

// RuntimeOptions say which runtime to start, and where.
type RuntimeOptions struct {
	Program string // "" means what the kind is called, from the $PATH that the command has
	Branch  string // where Session.StartRuntime works; "" means where its commands do
	Limits  runtime.Limits

	// Command says what else there is to say of a process: its workspace, directory, environment, network and sandbox. What it runs, its streams and its end are the
	// runtime's: these fields must be empty.
	Command Command
}

// StartRuntime starts a Node.js or Python process outside of any session, in Command.Workspace or Command.Dir. ctx is for the start alone; Close ends the
// process, and all that it has started.
//
// Errors: those of Command.Start and of runtime.Start; EXEC_OPTIONS for fields of Command that must be empty.
func StartRuntime(ctx context.Context, kind runtime.Kind, o RuntimeOptions) (runtime.CodeSession, error) {
	c := o.Command
	if c.Args != nil || c.Stdin != nil || c.Stdout != nil || c.Stderr != nil || c.Capture || c.AcceptFailure || c.Timeout != nil {
		return nil, invalid("command", "it has arguments, streams or a timeout, which are the runtime's")
	}
	c.AcceptFailure, c.Timeout = true, new(time.Duration(0)) // Close ends it
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	r, err := runtime.Start(ctx, kind, o.Program, c.starter(life, end), o.Limits)
	if err != nil || !stop() {
		end()
	}
	return r, err
}

// starter starts runtimes as this command.
func (c Command) starter(life context.Context, end func()) runtime.Starter {
	return func(args []string, stdin, stdout, stderr *os.File) (runtime.Running, error) {
		c.Args, c.Stdin, c.Stdout, c.Stderr = args, stdin, stdout, stderr
		p, err := c.Start(life)
		if err != nil {
			return nil, err
		}
		return runningRuntime{p, end}, nil
	}
}

// runningRuntime is the process of a runtime.
type runningRuntime struct {
	*Process
	end func()
}

// Wait implements runtime.Running.
func (r runningRuntime) Wait() error {
	result, err := r.Process.Wait()
	if err == nil {
		err = &ExitError{result}
	}
	r.end()
	return err
}

// Kill implements runtime.Running.
func (r runningRuntime) Kill() { r.end() }

// StartRuntime starts a Node.js or Python process in the workspace, or in a branch, which it finds at the workspace's own path. It ends when the session is
// closed, at the latest. ctx is for the start alone.
func (s *Session) StartRuntime(ctx context.Context, kind runtime.Kind, o RuntimeOptions) (runtime.CodeSession, error) {
	const op = "start runtime"
	life, leave, err := s.enter(context.WithoutCancel(ctx), op)
	if err != nil {
		return nil, err
	}
	branch := cmp.Or(o.Branch, s.Branch())
	if o.Branch != "" {
		_, err = s.client.Branch(ctx, o.Branch)
	}
	dir := s.dir
	if err == nil && branch != s.Branch() {
		dir, err = s.branchDir(op, branch)
	}
	if err != nil {
		leave()
		return nil, s.explain(life, op, err)
	}
	return s.startRuntime(ctx, life, leave, kind, branch, dir, o)
}

// StartRuntime starts a Node.js or Python process where the work is done: in the branch, if it is done in one. It ends when the callback returns, at the
// latest. ctx is for the start alone, and Branch must be empty.
func (j *job) StartRuntime(ctx context.Context, kind runtime.Kind, o RuntimeOptions) (runtime.CodeSession, error) {
	if o.Branch != "" {
		return nil, invalid("branch", "the work is done in %s", j.branch)
	}
	life, leave, err := j.enter(context.WithoutCancel(ctx), "start runtime")
	if err != nil {
		return nil, err
	}
	return j.s.startRuntime(ctx, life, leave, kind, j.branch, j.dir, o)
}

// startRuntime starts a runtime that ends with life, and calls leave when it has ended.
func (s *Session) startRuntime(ctx, life context.Context, leave func(), kind runtime.Kind, branch, dir string, o RuntimeOptions) (runtime.CodeSession, error) {
	o.Command = s.placeIn(branch, dir, o.Command)
	starting, started := context.WithCancel(ctx)
	defer started()
	stop := context.AfterFunc(life, started)
	r, err := StartRuntime(starting, kind, o)
	if !stop() {
		if err == nil {
			_ = r.Close()
		}
		err = context.Cause(life)
	}
	if err != nil {
		leave()
		return nil, err
	}
	alive := context.AfterFunc(life, func() { _ = r.Close() })
	go func() {
		<-r.Done()
		alive() // a session that has died is not a closed one
		leave()
	}()
	return r, nil
}
