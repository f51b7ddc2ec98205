package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

const (
	headerTimeout = 10 * time.Second // for the head of a request
	readTimeout   = 30 * time.Second // for a whole request
	idleTimeout   = 10 * time.Minute // of a connection between requests; the client opens a new one
	shutdownGrace = 2 * time.Second  // for replies that are being sent when the server closes
)

// Options of a server. Only Workspace is required.
type Options struct {
	Workspace Workspace
	Host      Host         // nil: a process without a mount, which cannot be unmounted
	Logger    *slog.Logger // nil means none; requests are logged at debug
	KeepTurns int          // completed turns that are kept of each conversation; 0 means turn.DefaultKeep, less means all
	SpoolDir  string       // where large patches are kept while they are made; must not be below the mount. "" means os.TempDir
}

// Server answers the API. Its methods may be called concurrently.
type Server struct {
	workspace Workspace
	attempts  *attempt.Engine
	turns     *turn.Engine // nil: a workspace that keeps none
	host      Host
	log       *slog.Logger
	spoolDir  string
	heartbeat time.Duration
	document  func() any // through a field, since routes must not refer to itself
	mux       *http.ServeMux
	http      *http.Server
	base      context.Context // of every request; ends with closing
	lanes     lanes
	requests  atomic.Int64
	listener  atomic.Pointer[net.Listener] // set by Serve

	closeOnce  sync.Once
	closing    chan struct{} // closed when no more requests are taken
	released   chan struct{} // closed when the workspace has been released
	releaseErr error         // written before released is closed
	shut       chan struct{} // closed when Close is done

	gate sync.RWMutex // held for reading by each request that uses the workspace, for writing to release it
}

// NewServer makes a server. Nothing listens before Serve.
func NewServer(o Options) *Server {
	s := &Server{
		workspace: o.Workspace,
		attempts:  attempt.New(o.Workspace),
		host:      o.Host,
		log:       o.Logger,
		spoolDir:  o.SpoolDir,
		heartbeat: eventHeartbeat,
		document:  Document,
		closing:   make(chan struct{}),
		released:  make(chan struct{}),
		shut:      make(chan struct{}),
	}
	if w, ok := o.Workspace.(turn.Workspace); ok {
		s.turns = turn.New(w, turn.Options{Keep: max(0, cmp.Or(o.KeepTurns, turn.DefaultKeep))})
	}
	if s.host == nil {
		s.host = noHost{}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.mux = s.newMux()
	base, cancel := context.WithCancel(context.Background())
	s.base = base
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	go func() {
		<-s.closing
		cancel()
	}()
	return s
}

// Serve answers on l until Close, and then gives nil. It closes l. It may be called once.
func (s *Server) Serve(l net.Listener) error {
	s.listener.Store(&l)
	err := s.http.Serve(l)
	select {
	case <-s.closing:
		<-s.shut
		return nil
	default:
		return err
	}
}

// Close ends the server: new requests are refused, those under way are cancelled and waited for, then release frees the
// workspace, then who asked to unmount gets its answer, with release's error if there is one. It gives that error.
// release is called once, however often Close is; it may be nil.
func (s *Server) Close(release func() error) error {
	s.closeOnce.Do(func() {
		defer close(s.shut)
		close(s.closing)
		if l := s.listener.Load(); l != nil {
			(*l).Close() // before the workspace is free: the next daemon must not find a socket that still answers
		}
		s.gate.Lock()
		if s.turns != nil {
			if err := s.turns.Close(); err != nil {
				s.log.Error("the states of turns that are under way are lost", "error", err)
			}
		}
		if release != nil {
			s.releaseErr = release()
		}
		s.gate.Unlock()
		close(s.released)
		ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
		defer cancel()
		s.lanes.end(ctx)
		if s.http.Shutdown(ctx) != nil {
			s.http.Close()
		}
	})
	<-s.released
	return s.releaseErr
}

// daemon says who we are.
func (s *Server) daemon() Daemon {
	d := s.host.Info()
	d.Requests = s.requests.Load()
	if l := s.listener.Load(); l != nil {
		d.Socket = (*l).Addr().String()
	}
	d.Version.Features = nonNil(d.Version.Features)
	return d
}

// newMux makes the mux from the table of routes. A known path with another method, and an unknown path, get a JSON
// error like any other failure.
func (s *Server) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	byPath := map[string]map[string]route{}
	for _, r := range routes {
		if byPath[r.path] == nil {
			byPath[r.path] = map[string]route{}
		}
		byPath[r.path][r.method] = r
	}
	for path, byMethod := range byPath {
		mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) {
			if r, ok := byMethod[req.Method]; ok {
				s.answer(r, w, req)
			} else {
				refuseMethod(w, req, byMethod)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		writeError(w, errs.New(NotFound, "call", req.URL.Path, "no such call").WithHint("see /openapi.json"))
	})
	return mux
}

// serve answers a request that came over a plain connection.
func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	if wantsLane(req) {
		s.openLane(w, req)
		return
	}
	s.mux.ServeHTTP(w, req)
}

// errMethod marks the error of a wrong method.
var errMethod = errors.New("wrong method")

func refuseMethod(w http.ResponseWriter, r *http.Request, byMethod map[string]route) {
	w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(byMethod)), ", "))
	writeError(w, errs.New(Usage, "call", r.URL.Path, "%w: %s", errMethod, r.Method))
}

// answer runs one request through its route.
func (s *Server) answer(r route, w http.ResponseWriter, req *http.Request) {
	start := time.Now()
	s.requests.Add(1)
	err := s.run(r, w, req)
	if err != nil {
		writeError(w, err)
	}
	if s.log.Enabled(req.Context(), slog.LevelDebug) {
		s.log.Debug("request", "op", r.op, "path", req.URL.Path, "took", time.Since(start), "error", err)
	}
}

func (s *Server) run(r route, w http.ResponseWriter, req *http.Request) error {
	c := &call{Request: req, id: cmp.Or(req.PathValue("id"), req.PathValue("name"), req.PathValue("kind"))}
	var err error
	if c.query, err = parseQuery(req.URL.RawQuery, r.query); err != nil {
		return err
	}
	if c.body, err = s.body(r, w, req); err != nil {
		return err
	}
	if _, whole := w.(*laneReply); whole && r.reply == nil {
		return errs.New(Usage, r.op, "", "its reply is a stream, which takes a connection of its own").WithHint("send it without Upgrade")
	}
	if r.op != "unmount" { // which waits for all others, and does not touch the workspace
		s.gate.RLock()
		defer s.gate.RUnlock()
	}
	select {
	case <-s.closing:
		return errs.New(Disposed, r.op, "", "the daemon is ending")
	default:
		return r.serve(s, w, c)
	}
}

// body reads and checks the body of a request: a pointer to the route's type.
func (s *Server) body(r route, w http.ResponseWriter, req *http.Request) (any, error) {
	var buf *bytes.Buffer
	limit := int64(maxBody)
	if r.large {
		buf, limit = new(bytes.Buffer), maxLargeBody // what is decoded from it keeps parts of it
	} else {
		buf = buffers.Get().(*bytes.Buffer)
		buf.Reset()
		defer buffers.Put(buf)
	}
	raw, err := readBody(w, req, buf, limit)
	if err != nil {
		return nil, err
	}
	if r.body == nil {
		return nil, decodeBody(raw, new(none))
	}
	v := reflect.New(r.body).Interface()
	return v, decodeBody(raw, v)
}

// buffers are for bodies of requests and replies.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// writeJSON sends v whole, with its length.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	var text []byte
	var err error
	if a, ok := v.(appender); ok {
		text, err = a.AppendJSON(nil)
	} else {
		buf := buffers.Get().(*bytes.Buffer)
		buf.Reset()
		defer buffers.Put(buf)
		enc := json.NewEncoder(buf)
		enc.SetEscapeHTML(false)
		err = enc.Encode(v)
		text = buf.Bytes()
	}
	if err != nil {
		return errs.Wrap(Internal, "encode the reply", "", err)
	}
	h := w.Header()
	h["Content-Type"] = contentJSON
	h["Content-Length"] = []string{strconv.Itoa(len(text))}
	w.WriteHeader(status)
	if _, err := w.Write(text); err != nil {
		panic(http.ErrAbortHandler) // the peer is gone, or must not take this for a whole reply
	}
	return nil
}

var contentJSON = []string{mediaJSON}

// writeError sends err as an ErrorReply.
func writeError(w http.ResponseWriter, err error) {
	reply := NewErrorReply(err)
	if e := writeJSON(w, statusOf(err), &reply); e != nil {
		panic(http.ErrAbortHandler)
	}
}

// noHost is the host of a server without a daemon.
type noHost struct{}

func (noHost) Info() Daemon { return Daemon{} }

func (noHost) Counters() map[string]uint64 { return nil }

func (noHost) Unmount(context.Context, UnmountOptions) error {
	return errs.New(NotFound, "unmount", "", "nothing is mounted")
}
