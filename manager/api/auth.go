package api

// auth.go - identifies callers and checks their rights.

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"watari/ca"
	"watari/core"
	"watari/hostlink"
	"watari/internal/protocol"
	"watari/manager/store"
	"watari/manager/view"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
)

// caller is the sender of a request; the zero value is an unknown caller.
type caller struct {
	kind  ca.Kind
	name  string
	uid   string // of the user or host
	gen   uint32 // of a user's certificate
	admin bool
	cert  *x509.Certificate
	login string // the secret of a browser's session; empty: the caller has a certificate
	why   string // why the certificate was refused
}

type callerKey struct{}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// identity returns the subject of the caller's certificate.
func (c caller) identity() ca.Identity {
	return ca.Identity{Kind: c.kind, Name: c.name, UID: c.uid, Generation: c.gen}
}

// coreCaller returns the caller as package core represents it.
func (c caller) coreCaller() core.Caller {
	return core.Caller{Name: c.name, UID: c.uid, Admin: c.admin}
}

// owns reports whether the caller may see and change an object.
func (c caller) owns(meta *v1.Meta) bool { return c.coreCaller().Owns(meta) }

// identify puts the caller into the request's context.
func (s *Server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := caller{why: "a certificate is needed"}
		if strings.HasPrefix(r.URL.Path, browsersPath) {
			c = s.browser(r)
		} else if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 { // ca.ServerTLS has verified it
			id, err := ca.IdentityOf(r.TLS.PeerCertificates[0])
			if err != nil {
				c.why = err.Error()
			} else {
				c = who(s.Store.Snapshot(), id)
				c.cert = r.TLS.PeerCertificates[0]
			}
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

// who accepts a certificate only while the object that it was issued for exists.
func who(snap *store.Snapshot, id ca.Identity) caller {
	switch id.Kind {
	case ca.KindUser:
		u := snap.Users[id.Name]
		if u == nil || u.Meta.Uid != id.UID || u.Meta.Deleting != nil {
			return caller{why: "user " + id.Name + " was removed"}
		}
		if u.Disabled != nil {
			return caller{why: disabledText(u)}
		}
		if u.Generation != id.Generation {
			return caller{why: "the certificates of user " + id.Name + " were revoked; ask an administrator for a new token"}
		}
		return caller{kind: id.Kind, name: id.Name, uid: u.Meta.Uid, gen: u.Generation, admin: u.Role == v1.Role_ROLE_ADMIN}
	case ca.KindHost:
		if why := hostRefused(snap, id); why != "" {
			return caller{why: why}
		}
		return caller{kind: id.Kind, name: id.Name, uid: id.UID, gen: id.Generation}
	case ca.KindManager:
		return caller{kind: id.Kind, name: id.Name}
	}
	return caller{why: id.String() + " has no business here"}
}

// disabledText is the reason for refusing the certificate of a disabled user.
func disabledText(u *v1.User) string {
	return fmt.Sprintf("user %s was disabled at %s; only an administrator can undo it", u.Meta.Name, u.Disabled.AsTime().Format(time.RFC3339))
}

// hostRefused returns why a host's certificate is refused; empty: it is accepted.
func hostRefused(snap *store.Snapshot, id ca.Identity) string {
	h := snap.Hosts[id.Name]
	switch {
	case h != nil && h.Meta.Uid == id.UID && h.Meta.Deleting == nil && h.Quarantine.GetCutOff() != nil:
		return fmt.Sprintf("host %s was cut off at %s, because it is quarantined; only an administrator can undo that", id.Name, h.Quarantine.CutOff.AsTime().Format(time.RFC3339))
	case h != nil && h.Meta.Uid == id.UID && h.Meta.Deleting == nil && id.Generation < h.Generation: // a later one is good: the state may have been put back
		return "the certificates of host " + id.Name + " were revoked; its guests are left alone; to give it another certificate, delete pki/ and wireguard.key " +
			"in its agent's state folder, and nothing else there, and join it with the token of `watari host revoke`"
	case h != nil && h.Meta.Uid == id.UID && h.Meta.Deleting == nil:
		return ""
	case snap.Removed[id.UID] != nil || h != nil && h.Meta.Uid == id.UID:
		return "host " + id.Name + " was removed; to take it back, delete pki/ in its agent's state folder and join it with a new token"
	}
	return "host " + id.Name + " is not known to this manager, whose state may have been put back from an older copy; " +
		"its guests are left alone; to take it in, delete pki/ in its agent's state folder, and nothing else there, and join it with a new token"
}

// AcceptHost is for session.New: it accepts only hosts that exist, and only at the leader. The agent of a removed host
// learns of the removal, and ends its guests. A host that is merely unknown ends nothing.
func (s *Server) AcceptHost(id ca.Identity) error {
	snap := s.Store.Snapshot()
	if !s.Leading() {
		return &hostlink.Refusal{Reason: "this manager does not lead", Leader: snap.Leader}
	}
	if why := hostRefused(snap, id); why != "" {
		s.unknown.refused(snap, id)
		return &hostlink.Refusal{Reason: why, Removed: snap.Removed[id.UID] != nil}
	}
	s.unknown.accepted(id)
	return nil
}

// guard admits only users to ControlService, and only where this manager leads.
type guard struct{ s *Server }

// adminOnly are the procedures that an ordinary user may not call.
var adminOnly = map[string]bool{
	watariv1connect.ControlServiceDrainHostProcedure:      true,
	watariv1connect.ControlServiceSetSiteProcedure:        true,
	watariv1connect.ControlServiceQuarantineHostProcedure: true,
	watariv1connect.ControlServiceRevokeHostProcedure:     true,
	watariv1connect.ControlServiceTrustHostProcedure:      true,
	watariv1connect.ControlServiceSpareHostProcedure:      true,
	watariv1connect.ControlServiceRemoveHostProcedure:     true,
	watariv1connect.ControlServiceCreateTokenProcedure:    true,
	watariv1connect.ControlServiceAddUserProcedure:        true,
	watariv1connect.ControlServiceDisableUserProcedure:    true,
	watariv1connect.ControlServiceRevokeUserProcedure:     true,
	watariv1connect.ControlServiceRemoveUserProcedure:     true,
	watariv1connect.ControlServiceSetQuotaProcedure:       true,
	watariv1connect.ControlServiceRecoverProcedure:        true,
	watariv1connect.ControlServiceApplyPolicyProcedure:    true,
	watariv1connect.ControlServiceListPoliciesProcedure:   true,
	watariv1connect.ControlServiceTestPolicyProcedure:     true,
	watariv1connect.ControlServiceAllowStorageProcedure:   true,
	watariv1connect.ControlServiceForbidStorageProcedure:  true,
	watariv1connect.ControlServiceAuditProcedure:          true,
}

// refusedWhileHeld are the procedures that are refused while the manager holds: they change clusters, guests, moves, runs or hosts,
// or remove what lost objects may need. Users, images and tokens can be added, because a recovery may need them. CreateImage and PutFile
// check by themselves what they must not do then.
var refusedWhileHeld = map[string]bool{
	watariv1connect.ControlServiceCreateClusterProcedure:     true,
	watariv1connect.ControlServiceResizeClusterProcedure:     true,
	watariv1connect.ControlServiceDeleteClusterProcedure:     true,
	watariv1connect.ControlServiceStartGuestProcedure:        true,
	watariv1connect.ControlServiceStopGuestProcedure:         true,
	watariv1connect.ControlServiceMigrateProcedure:           true,
	watariv1connect.ControlServiceCancelMigrationProcedure:   true,
	watariv1connect.ControlServiceCreateCheckpointProcedure:  true,
	watariv1connect.ControlServiceDeleteCheckpointProcedure:  true,
	watariv1connect.ControlServiceChangeCheckpointProcedure:  true,
	watariv1connect.ControlServicePlanCheckpointsProcedure:   true,
	watariv1connect.ControlServiceRestoreCheckpointProcedure: true,
	watariv1connect.ControlServiceVerifyCheckpointProcedure:  true,
	watariv1connect.ControlServiceCreateVolumeProcedure:      true,
	watariv1connect.ControlServiceDeleteVolumeProcedure:      true,
	watariv1connect.ControlServiceMoveVolumeProcedure:        true,
	watariv1connect.ControlServiceForbidStorageProcedure:     true,
	watariv1connect.ControlServiceCreateRunProcedure:         true,
	watariv1connect.ControlServiceStartRunProcedure:          true,
	watariv1connect.ControlServiceCancelRunProcedure:         true,
	watariv1connect.ControlServiceRemoveRunProcedure:         true,
	watariv1connect.ControlServiceDrainHostProcedure:         true,
	watariv1connect.ControlServiceSetSiteProcedure:           true,
	watariv1connect.ControlServiceQuarantineHostProcedure:    true,
	watariv1connect.ControlServiceRevokeHostProcedure:        true,
	watariv1connect.ControlServiceApplyPolicyProcedure:       true,
	watariv1connect.ControlServiceTrustHostProcedure:         true,
	watariv1connect.ControlServiceSpareHostProcedure:         true,
	watariv1connect.ControlServiceRemoveHostProcedure:        true,
	watariv1connect.ControlServiceRemoveImageProcedure:       true,
	watariv1connect.ControlServiceRemoveUserProcedure:        true,
}

// anywhere are the procedures that a manager answers even if it does not lead.
var anywhere = map[string]bool{
	watariv1connect.ControlServiceWhoAmIProcedure: true,
	watariv1connect.ControlServiceEventsProcedure: true,
}

func (g *guard) check(ctx context.Context, procedure string) error {
	c := callerOf(ctx)
	if c.kind != ca.KindUser {
		why := c.why
		if c.kind != "" {
			why = "this is for users, and the certificate is a " + string(c.kind) + "'s"
		}
		return fail(connect.CodeUnauthenticated, "%s", why)
	}
	if adminOnly[procedure] && !c.admin {
		return fail(connect.CodePermissionDenied, "user %s is not an administrator", c.name)
	}
	if !anywhere[procedure] {
		if err := g.s.mustLead(ctx); err != nil {
			return err
		}
	}
	if refusedWhileHeld[procedure] {
		return g.s.mustNotHold()
	}
	return nil
}

// mustNotHold returns an error while the manager holds.
func (s *Server) mustNotHold() error {
	if !s.Store.Snapshot().Held() {
		return nil
	}
	return fail(connect.CodeFailedPrecondition, "%s", view.HoldNext)
}

// renewalLook is the pause between two looks whether a new term has begun.
const renewalLook = 20 * time.Millisecond

// mustLead returns an error if this manager does not lead; the error names the leader. While the manager begins a new term,
// mustLead waits.
func (s *Server) mustLead(ctx context.Context) error {
	for !s.Leading() && s.Renewing() && ctx.Err() == nil {
		select {
		case <-time.After(renewalLook):
		case <-ctx.Done():
		}
	}
	if s.Leading() {
		return nil
	}
	if err := store.Readable(s.Store.Snapshot()); err != nil {
		return fail(connect.CodeUnavailable, "this manager does not lead: %v", err)
	}
	if leader := s.Store.Snapshot().Leader; leader != "" {
		err := connect.NewError(connect.CodeUnavailable, fmt.Errorf("this manager does not lead; the last to lead is %s", leader))
		err.Meta().Set(protocol.LeaderHeader, leader)
		return err
	}
	return fail(connect.CodeUnavailable, "no manager leads yet")
}

// WrapUnary implements connect.Interceptor.
func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if err := g.check(ctx, r.Spec().Procedure); err != nil {
			return nil, err
		}
		return next(ctx, r)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (g *guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := g.check(ctx, conn.Spec().Procedure); err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go g.s.awaitRefusal(ctx, cancel)
		err := next(ctx, conn)
		var refused *connect.Error
		if errors.As(context.Cause(ctx), &refused) {
			return refused
		}
		return err
	}
}

// awaitRefusal ends a stream when its caller is removed or disabled, or when the browser's session ends. A stream may last for days.
func (s *Server) awaitRefusal(ctx context.Context, cancel context.CancelCauseFunc) {
	c, changes := callerOf(ctx), s.Store.Subscribe(ctx)
	var look <-chan time.Time
	if c.login != "" {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		now := who(s.Store.Snapshot(), c.identity())
		if c.login != "" {
			if _, lasts := s.logins.take(c.login, false); !lasts {
				now = caller{why: noLogin}
			}
		}
		if now.kind == "" {
			cancel(fail(connect.CodeUnauthenticated, "%s", now.why))
			return
		}
		select {
		case <-changes:
		case <-look:
		case <-ctx.Done():
			return
		}
	}
}

// guardBlobs lets hosts and users read blobs, and only users write them.
func (s *Server) guardBlobs(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callerOf(r.Context())
		switch {
		case c.kind == "":
			http.Error(w, c.why, http.StatusUnauthorized)
		case r.Method == http.MethodPut && c.kind != ca.KindUser:
			http.Error(w, "only users put blobs", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
