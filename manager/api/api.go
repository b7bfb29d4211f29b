// Package api serves the manager's control API: ControlService for users, JoinService for bearers of tokens, and images'
// blobs. Handlers check the caller, write the wanted state to the store, and answer from the store's snapshot and the
// agents' reports. The controller acts on the wanted state.
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

// DefaultPrefix is the prefix from which each cluster gets its own, a /24 or larger.
var DefaultPrefix = netip.MustParsePrefix("10.77.0.0/16")

// ParsePrefix parses a prefix from which clusters get theirs.
func ParsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || !prefix.Addr().Is4() || prefix.Bits() < 8 || prefix.Bits() > 24 {
		return netip.Prefix{}, fmt.Errorf("%q is not an IPv4 prefix of /8 to /24, as in %s", text, DefaultPrefix)
	}
	return prefix, nil
}

// Options are the API's dependencies and settings. All but Began, Prefix, Version and Log are needed.
type Options struct {
	Store     *store.Store
	Sessions  *session.Sessions
	History   *history.History
	Blobs     *blob.Store
	Authority *ca.Authority
	// Stamps verifies the stamps that hosts show; nil in tests without stamps.
	Stamps *view.Stamps
	// AuditLog records the calls. If it is nil, calls are not recorded.
	AuditLog *auditlog.Log
	// RunsDir holds <run uid>/{stdout,stderr}.
	RunsDir string
	// Leading reports whether this manager leads.
	Leading func() bool
	// Renewing reports whether this manager has just ended its term and is about to begin another.
	Renewing func() bool
	// Began returns when this manager last began to lead; nil: long ago.
	Began func() time.Time
	// Signals returns the policies' present knowledge of hosts, and the policy in force, which may be nil. Unset: nothing.
	Signals func(now time.Time) (core.Signals, *policy.Policy)
	// Traffic returns which guests exchange messages now. Unset: unknown.
	Traffic func(now time.Time) core.Traffic
	// Lately returns what hosts and guests have used lately, or nil if unknown. Unset: always unknown.
	Lately func() *core.Usage
	// Prefix is the prefix from which clusters get theirs. The zero value stands for DefaultPrefix.
	Prefix netip.Prefix
	// Version is the manager's version, for GetStatus.
	Version string
	Log     *slog.Logger
}

// Server implements the services.
type Server struct {
	watariv1connect.UnimplementedControlServiceHandler
	Options
	execs     callers    // of GuestExec
	changing  sync.Mutex // held from a decision until the snapshot shows it
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

// Handler serves everything: the two services, /blobs/ and the web console.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	path, control := watariv1connect.NewControlServiceHandler(s, readLimits(), connect.WithInterceptors(&auditor{s.AuditLog}, &guard{s}))
	mux.Handle(path, control)
	mux.Handle(consolePath, s.webConsole(control))
	joinPath, join := watariv1connect.NewJoinServiceHandler(&joiner{s}, connect.WithReadMaxBytes(maxJoinBytes), connect.WithInterceptors(&auditor{s.AuditLog}))
	mux.Handle(joinPath, join)
	mux.Handle("/blobs/{digest}", s.auditBlobs(s.guardBlobs(s.Blobs.Handler(func(r *http.Request) string { return callerOf(r.Context()).uid }, s.roomForUploads))))
	return s.identify(limitStrangers(new(callersLimit).limit(mux)))
}

// fail makes an error with a code.
func fail(code connect.Code, format string, a ...any) error {
	return connect.NewError(code, fmt.Errorf(format, a...))
}

// storeError gives an error of the store, or a refusal, its connect code.
func storeError(err error) error {
	var coded *connect.Error
	switch {
	case err == nil:
		return nil
	case errors.As(withCode(err), &coded):
		return coded
	case errors.Is(err, store.ErrNotFound):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, store.ErrExists):
		return connect.NewError(connect.CodeAlreadyExists, err)
	case errors.Is(err, store.ErrConflict):
		return connect.NewError(connect.CodeAborted, err)
	case errors.Is(err, store.ErrTooLarge):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, store.ErrNoSpace):
		return connect.NewError(connect.CodeResourceExhausted, err)
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	}
	return connect.NewError(connect.CodeUnavailable, err)
}

// maxTries is how often a change is decided again after others have changed the same objects.
const maxTries = 50

// change calls decide on the snapshot and writes the result. It repeats this while others (the controller) change the same
// objects. Users' changes are made one after the other, because they depend on more than the objects that they write: a free
// prefix, the rest of a quota, whether an image is unused. decide returns no operations if there is nothing to do.
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

// audit returns the history's event about a change that the caller requested.
func audit(ctx context.Context, kind, name, format string, a ...any) store.Op {
	return store.Record(&v1.Event{
		Severity: v1.Severity_SEVERITY_INFO, Kind: kind, Name: name, Actor: callerOf(ctx).name, Message: fmt.Sprintf(format, a...),
	})
}
