package api

// check.go - hands requests to core's admission, and gives its refusals their codes.

import (
	"context"
	"errors"
	"time"

	"watari/core"
	"watari/manager/store"

	"connectrpc.com/connect"
)

// admission is what core decides by about a request of the caller.
func (s *Server) admission(ctx context.Context, snap *store.Snapshot) *core.Admission {
	return &core.Admission{Objects: snap, Caller: callerOf(ctx).asks(), Reports: s.Sessions, Now: time.Now(), Began: s.Began(), Pool: s.Prefix}
}

// admit has core decide on a request, and writes the change that follows; see change.
func (s *Server) admit(ctx context.Context, decide func(*core.Admission) (core.Change, error)) error {
	return s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		change, err := decide(s.admission(ctx, snap))
		if err != nil {
			return nil, err
		}
		return store.Operations(change), nil
	})
}

// codes are those of refusals.
var codes = map[core.RefusalKind]connect.Code{
	core.Invalid:         connect.CodeInvalidArgument,
	core.NotFound:        connect.CodeNotFound,
	core.Exists:          connect.CodeAlreadyExists,
	core.Precondition:    connect.CodeFailedPrecondition,
	core.Denied:          connect.CodePermissionDenied,
	core.Exhausted:       connect.CodeResourceExhausted,
	core.Unauthenticated: connect.CodeUnauthenticated,
}

// coded gives a refusal its code. Other errors are returned as they are.
func coded(err error) error {
	var refusal *core.Refusal
	if !errors.As(err, &refusal) {
		return err
	}
	return connect.NewError(codes[refusal.Kind], refusal)
}

// checkName refuses names of new objects that do not follow the rule.
func checkName(kind, name string) error { return coded(core.CheckName(kind, name)) }

// missing says that there is no such object, and which there are.
func missing[T any](kind, name string, there map[string]T) error {
	return coded(core.Missing(kind, name, there))
}

// own returns those of the objects that the caller may see.
func own[T store.Object](c caller, all map[string]T) map[string]T { return core.Own(c.asks(), all) }

// find returns an object that the caller may see. An object of another user does not exist for the caller.
func find[T store.Object](c caller, kind, name string, all map[string]T) (T, error) {
	o, err := core.Find(c.asks(), kind, name, all)
	return o, coded(err)
}
