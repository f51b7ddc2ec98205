package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// readyFlag is the hidden flag that makes mount or serve the daemon itself. Its value is the descriptor of a pipe, on which the
// daemon says one JSON document: an empty object when it answers, or why it does not.
const readyFlag = "daemon"

// startDaemon starts this program again as a daemon and returns when it answers, or with the daemon's error.
func startDaemon(ctx context.Context, o mountOptions) error {
	r, w, err := os.Pipe()
	if err != nil {
		return errs.Wrap(control.Internal, "start the daemon", "", err)
	}
	defer r.Close()
	var stderr bytes.Buffer
	program, err := ourProgram()
	if err != nil {
		w.Close()
		return errs.Wrap(control.Internal, "start the daemon", "", err)
	}
	cmd := exec.Command(program)
	cmd.Dir = neutralDir()
	cmd.Stderr = &stderr
	number, err := detach(cmd, w)
	if err == nil {
		cmd.Args = append([]string{os.Args[0]}, o.args(number)...)
		err = startDaemonProcess(cmd)
	}
	w.Close()
	if err != nil {
		return errs.Wrap(control.Internal, "start the daemon", "", err)
	}
	stop := context.AfterFunc(ctx, func() { askToEnd(cmd.Process) })
	defer stop()
	said, err := io.ReadAll(r)
	if err != nil {
		return errs.Wrap(control.Internal, "start the daemon", "", err)
	}
	return heard(cmd, said, &stderr)
}

// heard makes an error, or nil, of what the daemon said before it closed the pipe.
func heard(cmd *exec.Cmd, said []byte, stderr *bytes.Buffer) error {
	var reply control.ErrorReply
	if json.Unmarshal(said, &reply) == nil {
		if reply.Error.Code == "" {
			go cmd.Wait() // it may end while we still run
			return nil
		}
		cmd.Wait() // its exit code says less than it did
		return reply.Err()
	}
	err := cmd.Wait()
	if err == nil {
		err = errors.New("it ended")
	}
	return errs.New(control.Internal, "start the daemon", "", "%w: %s", err, strings.TrimSpace(stderr.String()))
}

// args gives the arguments of the daemon, which reports on a descriptor.
func (o mountOptions) args(ready uintptr) []string {
	args := []string{"serve"}
	if !o.Served {
		args = []string{"mount",
			"--at", o.Mountpoint,
			"--no-tmpfs=" + strconv.FormatBool(o.NoTmpfs),
			"--no-hot=" + strconv.FormatBool(o.Hot.Off),
			"--hot-file-bytes", strconv.FormatInt(o.Hot.FileBytes, 10),
			"--hot-total-bytes", strconv.FormatInt(o.Hot.TotalBytes, 10),
			"--hot-files", strconv.Itoa(o.Hot.Files),
			"--allow-other=" + strconv.FormatBool(o.AllowOther),
			"--no-xattrs=" + strconv.FormatBool(o.NoXattrs),
			"--passthrough=" + strconv.FormatBool(o.Passthrough),
			"--no-passthrough=" + strconv.FormatBool(o.NoPassthrough),
			"--open-requests=" + strconv.FormatBool(o.OpenRequests),
			"--no-uring=" + strconv.FormatBool(o.NoURing),
			"--no-near-reader=" + strconv.FormatBool(o.NoNearReader),
			"--no-single-reader=" + strconv.FormatBool(o.NoSingleReader),
			"--no-inotify=" + strconv.FormatBool(o.NoInotify),
			"--large-min", strconv.FormatInt(o.LargeMin, 10),
			"--block-size", strconv.FormatInt(o.BlockSize, 10),
		}
	}
	args = append(args,
		"--"+readyFlag, strconv.FormatUint(uint64(ready), 10),
		"--tier", o.Tier,
		"--max-checkpoints", strconv.Itoa(o.MaxCheckpoints),
		"--keep-turns", strconv.Itoa(o.KeepTurns),
		"--no-durable-journals="+strconv.FormatBool(o.NoJournals),
		"--strict-ignored="+strconv.FormatBool(o.StrictIgnored),
		"--sync="+strconv.FormatBool(o.Sync),
		"--debug="+strconv.FormatBool(o.Debug),
	)
	for _, pattern := range o.Ignore {
		args = append(args, "--ignore="+pattern)
	}
	if o.Store != "" {
		args = append(args, "--store", o.Store)
	}
	if o.TmpfsDir != "" {
		args = append(args, "--tmpfs-dir", o.TmpfsDir)
	}
	return append(args, "--", o.Workspace)
}

// daemonMain is the daemon: it reports on descriptor fd, then works until it is unmounted.
func daemonMain(o mountOptions, fd uintptr) error {
	ready := os.NewFile(fd, "ready")
	if ready == nil {
		return errs.New(control.Usage, "mount", "--"+readyFlag, "%d is no descriptor", fd)
	}
	logs := &logFile{}
	d, err := newDaemon(o, logs, newLogger(logs, o.Debug))
	if err == nil {
		err = logs.takeStderr()
	}
	if err != nil {
		return errors.Join(err, json.NewEncoder(ready).Encode(control.NewErrorReply(err)))
	}
	if _, err := io.WriteString(ready, "{}\n"); err != nil {
		d.log.Warn("whoever started the daemon is gone", "error", err)
	}
	ready.Close()
	return d.run()
}

// serveForeground is the daemon in the foreground: it logs to stderr too, and ends on a signal.
func serveForeground(c *cli.Context, o mountOptions) error {
	logs := &logFile{}
	d, err := newDaemon(o, logs, newLogger(io.MultiWriter(c.App.ErrWriter, logs), o.Debug))
	if err != nil {
		return err
	}
	if err := reportMount(c, o); err != nil {
		d.log.Error("report", "error", err)
	}
	return d.run()
}
