// Package api serves the manager's control API: ControlService for users, JoinService for those who have a
// token, and images' blobs. Handlers check who calls, write what is wanted into the store, and answer from its
// snapshot and from what the agents report; acting on it is the controller's.
package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"watari/ca"
	"watari/core"
	"watari/manager/auditlog"
	"watari/manager/blob"
	"watari/manager/history"
	"watari/manager/session"
	"watari/manager/store"
	"watari/manager/view"
	"watari/policy"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
)

// DefaultPrefix is what clusters' prefixes, a /24 or larger each, are taken from.
var DefaultPrefix = netip.MustParsePrefix("10.77.0.0/16")

// Options is what the API works with. All but Began, Prefix, Version and Log are needed.
type Options struct {
	Store     *store.Store
	Sessions  *session.Sessions
	History   *history.History
	Blobs     *blob.Store
	Authority *ca.Authority
	// Stamps verifies what hosts show; nil in tests that have none.
	Stamps *view.Stamps
	// AuditLog has the calls; nil: they are not recorded.
	AuditLog *auditlog.Log
	// RunsDir holds <run uid>/{stdout,stderr}.
	RunsDir string
	// Leading says whether this manager leads.
	Leading func() bool
	// Began returns when this manager began to lead, last; nil: long ago.
	Began func() time.Time
	// Signals returns what policies know of hosts now, and the policy in force, which may be nil. Unset: nothing.
	Signals func(now time.Time) (core.Signals, *policy.Policy)
	// Traffic returns which guests talk to each other now. Unset: that is not known.
	Traffic func(now time.Time) core.Traffic
	// Lately returns what hosts and guests have used lately; nil: nothing is known. Unset: nothing ever is.
	Lately func() *core.Usage
	// Prefix is what clusters' prefixes are taken from; the zero value: DefaultPrefix.
	Prefix netip.Prefix
	// Version of the manager, for GetStatus.
	Version string
	Log     *slog.Logger
}

// Server implements the services.
type Server struct {
	watariv1connect.UnimplementedControlServiceHandler
	Options
	execs     callers    // of GuestExec
	changing  sync.Mutex // held from a decision to the snapshot that shows it
	unknown   unknownHosts
	replaying sync.Mutex // held while a policy is tested
	logins    logins     // of browsers
}

// New makes the server.
func New(o Options) *Server {
	if !o.Prefix.IsValid() {
		o.Prefix = DefaultPrefix
	}
	if o.Began == nil {
		o.Began = func() time.Time { return time.Time{} }
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Server{Options: o}
}

// maxMessage bounds one request message, bytes.
const maxMessage = 8 << 20

// Handler serves everything: the two services, /blobs/ and the web console.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	limit := connect.WithReadMaxBytes(maxMessage)
	path, control := watariv1connect.NewControlServiceHandler(s, limit, connect.WithInterceptors(&auditor{s.AuditLog}, &guard{s}))
	control = strangersSayLittle(control)
	mux.Handle(path, control)
	mux.Handle(consolePath, s.webConsole(control))
	mux.Handle(watariv1connect.NewJoinServiceHandler(&joiner{s}, connect.WithReadMaxBytes(mostJoin), connect.WithInterceptors(&auditor{s.AuditLog})))
	mux.Handle("/blobs/{digest}", s.auditBlobs(s.guardBlobs(s.Blobs.Handler(func(r *http.Request) string { return callerOf(r.Context()).uid }, s.roomForUploads))))
	return s.identify(mux)
}

// strangersSayLittle bounds what is read of a request of nobody whose certificate is honoured: it is read before it is refused.
func strangersSayLittle(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if callerOf(r.Context()).kind == "" {
			r.Body = http.MaxBytesReader(w, r.Body, mostJoin)
		}
		next.ServeHTTP(w, r)
	})
}

// fail makes an error with a code.
func fail(code connect.Code, format string, a ...any) error {
	return connect.NewError(code, fmt.Errorf(format, a...))
}

// storeError gives an error of the store, or a refusal, its code.
func storeError(err error) error {
	var withCode *connect.Error
	switch {
	case err == nil:
		return nil
	case errors.As(coded(err), &withCode):
		return withCode
	case errors.Is(err, store.ErrNotFound):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, store.ErrExists):
		return connect.NewError(connect.CodeAlreadyExists, err)
	case errors.Is(err, store.ErrConflict):
		return connect.NewError(connect.CodeAborted, err)
	case errors.Is(err, store.ErrNoSpace):
		return connect.NewError(connect.CodeResourceExhausted, err)
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	}
	return connect.NewError(connect.CodeUnavailable, err)
}

// maxTries is how often a change that others overtook is decided anew.
const maxTries = 50

// change decides on the snapshot and writes, again and again while others (the controller) change the same objects
// meanwhile. Users' changes are made one after the other, for they rest on more than the objects they write: a prefix
// that no cluster has, what is left of a quota, that nobody uses an image. decide returns no operations when nothing is
// to be done.
func (s *Server) change(ctx context.Context, decide func(*store.Snapshot) ([]store.Op, error)) error {
	for try := 1; ; try++ {
		err := s.changeOnce(ctx, decide)
		overtaken := errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrNotFound)
		if !overtaken || try == maxTries {
			return storeError(err)
		}
	}
}

func (s *Server) changeOnce(ctx context.Context, decide func(*store.Snapshot) ([]store.Op, error)) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	ops, err := decide(s.Store.Snapshot())
	if err != nil {
		return err
	}
	return s.Store.Txn(ctx, ops...)
}

// audit is the history's line about a change that the caller asked for.
func audit(ctx context.Context, kind, name, format string, a ...any) store.Op {
	return store.Record(&v1.Event{
		Severity: v1.Severity_SEVERITY_INFO, Kind: kind, Name: name, Actor: callerOf(ctx).name, Message: fmt.Sprintf(format, a...),
	})
}
