package control

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
)

const (
	profileSeconds    = 5   // that a profile takes if nobody says how long
	profileMaxSeconds = 300 // at most
	profileMutexShare = 10  // one of so many waits for a lock is noted
	profileBlockRate  = int(10 * time.Microsecond)
)

// profileKinds are the kinds of profile, for the OpenAPI document and the client.
var profileKinds = []any{"profile", "heap", "allocs", "goroutine", "threadcreate", "mutex", "block", "trace"}

// ProfileKinds gives the kinds of profile.
func ProfileKinds() (list []string) {
	for _, k := range profileKinds {
		list = append(list, k.(string))
	}
	return list
}

// profiling is held while something is switched on for a profile: the runtime has one switch for each.
var profiling sync.Mutex

// recorders are the kinds that watch for a while: what begins, and what ends and writes it.
var recorders = map[string]func(ctx context.Context, w io.Writer, d time.Duration, debug int) error{
	"profile": func(ctx context.Context, w io.Writer, d time.Duration, _ int) error {
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		sleep(ctx, d)
		pprof.StopCPUProfile()
		return ctx.Err()
	},
	"trace": func(ctx context.Context, w io.Writer, d time.Duration, _ int) error {
		if err := trace.Start(w); err != nil {
			return err
		}
		sleep(ctx, d)
		trace.Stop()
		return ctx.Err()
	},
	"mutex": func(ctx context.Context, w io.Writer, d time.Duration, debug int) error {
		was := runtime.SetMutexProfileFraction(profileMutexShare)
		sleep(ctx, d)
		runtime.SetMutexProfileFraction(was)
		return pprof.Lookup("mutex").WriteTo(w, debug)
	},
	"block": func(ctx context.Context, w io.Writer, d time.Duration, debug int) error {
		runtime.SetBlockProfileRate(profileBlockRate)
		sleep(ctx, d)
		runtime.SetBlockProfileRate(0)
		return pprof.Lookup("block").WriteTo(w, debug)
	},
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func noSuchProfile(kind string) error {
	return errs.New(NotFound, "pprof", kind, "there is no such profile").WithHint(strings.Join(ProfileKinds(), ", "))
}

// profile makes the whole profile before it sends anything, so that a failure has its own status. mutex and block have what was noted for every call so far.
func profile(s *Server, w http.ResponseWriter, c *call) error {
	d, err := profileTime(c.query["seconds"])
	if err != nil {
		return err
	}
	spool := &spool{dir: s.spoolDir}
	defer spool.Close()
	if err := writeProfile(c.Context(), c.id, d, c.query.flag("text"), spool); err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaProfile)
	w.Header().Set("Content-Length", strconv.FormatInt(spool.size, 10))
	w.WriteHeader(http.StatusOK)
	if spool.copyTo(w) != nil {
		panic(http.ErrAbortHandler) // see patch
	}
	return nil
}

func profileTime(seconds string) (time.Duration, error) {
	if seconds == "" {
		return profileSeconds * time.Second, nil
	}
	n, err := strconv.Atoi(seconds)
	if err != nil || n < 1 || n > profileMaxSeconds {
		return 0, errs.New(Usage, "pprof", "seconds", "it must be a number from 1 to %d", profileMaxSeconds)
	}
	return time.Duration(n) * time.Second, nil
}

// writeProfile writes a profile, for which the process is watched for d where it is of a kind that takes time.
func writeProfile(ctx context.Context, kind string, d time.Duration, text bool, w io.Writer) error {
	if !slices.Contains(profileKinds, any(kind)) {
		return noSuchProfile(kind)
	}
	debug := 0
	if text {
		debug = 1
		if kind == "goroutine" {
			debug = 2
		}
	}
	if record := recorders[kind]; record != nil {
		if !profiling.TryLock() {
			return errs.New(Busy, "pprof", kind, "another profile is being made")
		}
		defer profiling.Unlock()
		return errs.Wrap(Internal, "pprof", kind, record(ctx, w, d, debug))
	}
	if kind == "heap" {
		runtime.GC() // so that it says what is alive now
	}
	return errs.Wrap(Internal, "pprof", kind, pprof.Lookup(kind).WriteTo(w, debug))
}
