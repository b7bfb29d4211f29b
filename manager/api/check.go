package api

// check.go - passes requests to core's admission, and gives its refusals their connect codes.

import (
	"context"
	"errors"
	"time"

	"watari/core"
	"watari/manager/store"

	"connectrpc.com/connect"
)

// admission returns what core needs to decide on a request of the caller.
func (s *Server) admission(ctx context.Context, snap *store.Snapshot) *core.Admission {
	return &core.Admission{Objects: snap, Caller: callerOf(ctx).coreCaller(), Reports: s.Sessions, Now: time.Now(), Began: s.Began(), Pool: s.Prefix}
}

// admit lets core decide on a request, and writes the resulting change; see change.
func (s *Server) admit(ctx context.Context, decide func(*core.Admission) (core.Change, error)) error {
	return s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		change, err := decide(s.admission(ctx, snap))
		if err != nil {
			return nil, err
		}
		return store.Operations(change), nil
	})
}

// codes maps kinds of refusals to connect codes.
var codes = map[core.RefusalKind]connect.Code{
	core.Invalid:         connect.CodeInvalidArgument,
	core.NotFound:        connect.CodeNotFound,
	core.Exists:          connect.CodeAlreadyExists,
	core.Precondition:    connect.CodeFailedPrecondition,
	core.Denied:          connect.CodePermissionDenied,
	core.Exhausted:       connect.CodeResourceExhausted,
	core.Unauthenticated: connect.CodeUnauthenticated,
	core.Lost:            connect.CodeDataLoss,
}

// withCode gives a refusal its code. Other errors are returned as they are.
func withCode(err error) error {
	var refusal *core.Refusal
	if !errors.As(err, &refusal) {
		return err
	}
	return connect.NewError(codes[refusal.Kind], refusal)
}

// checkName refuses names of new objects that do not follow the rule.
func checkName(kind, name string) error { return withCode(core.CheckName(kind, name)) }

// missing returns an error that names the missing object and lists the existing ones.
func missing[T any](kind, name string, there map[string]T) error {
	return withCode(core.Missing(kind, name, there))
}

// own returns the objects that the caller may see.
func own[T store.Object](c caller, all map[string]T) map[string]T {
	return core.Own(c.coreCaller(), all)
}

// find returns an object that the caller may see. An object of another user does not exist for the caller.
func find[T store.Object](c caller, kind, name string, all map[string]T) (T, error) {
	o, err := core.Find(c.coreCaller(), kind, name, all)
	return o, withCode(err)
}
