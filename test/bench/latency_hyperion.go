package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed hyperion.mjs
var hyperionScript []byte

// hyperion is the npm package hyperion-delta, in a node process that stays. It goes back only from changes that its own
// process made: after those of another one its rollback ends with "Missing backup record".
type hyperion struct {
	cache   string // npm's
	home    string // where the package is
	tree    string
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func (k *hyperion) name() string { return "hyperion-delta" }

func (k *hyperion) start(ctx context.Context, dir string) (string, error) {
	k.home, k.tree = filepath.Join(dir, "home"), filepath.Join(dir, "tree")
	for _, d := range []string{k.home, k.tree} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(k.home, "drive.mjs"), hyperionScript, 0o644); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(k.home, "package.json"), []byte(`{"private": true}`), 0o644); err != nil {
		return "", err
	}
	return k.tree, npm(ctx, k.home, k.cache, "install", "hyperion-delta@0.1.7")
}

// prepare makes the tree a git repository, since the package works faster in one, and starts it.
func (k *hyperion) prepare(ctx context.Context) error {
	if err := gitCommitAll(ctx, k.tree); err != nil {
		return err
	}
	k.process = exec.CommandContext(ctx, "node", "drive.mjs", k.tree)
	k.process.Dir = k.home
	k.process.Stderr = os.Stderr
	var err error
	if k.in, err = k.process.StdinPipe(); err != nil {
		return err
	}
	out, err := k.process.StdoutPipe()
	if err != nil {
		return err
	}
	k.out = bufio.NewReader(out)
	return k.process.Start()
}

func (k *hyperion) save(context.Context) error    { return k.ask("save") }
func (k *hyperion) restore(context.Context) error { return k.ask("restore") }
func (k *hyperion) change(files, dirty int) error {
	return k.ask(fmt.Sprintf("change %d %d", files, dirty))
}
func (k *hyperion) forget(context.Context) error { return nil } // a rollback ends the checkpoint

func (k *hyperion) stop() error {
	if k.process == nil || k.process.Process == nil {
		return nil
	}
	err := errors.Join(k.ask("stop"), k.process.Wait())
	empty, _ := filepath.Glob("/dev/shm/hyperion-delta/*")
	for _, dir := range append(empty, "/dev/shm/hyperion-delta") {
		os.Remove(dir) // it leaves an empty directory behind for each session; this removes nothing else
	}
	return err
}

// ask sends a command and waits for its answer.
func (k *hyperion) ask(what string) error {
	if _, err := fmt.Fprintln(k.in, what); err != nil {
		return err
	}
	answer, err := k.out.ReadString('\n')
	if err != nil {
		return err
	}
	if answer = strings.TrimSpace(answer); answer != "ok" {
		return errors.New(answer)
	}
	return nil
}
