package api

// audit.go - the audit log: which calls are recorded, and how entries are read.

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strings"

	"watari/ca"
	"watari/manager/auditlog"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// auditor records calls in the audit log.
type auditor struct{ log *auditlog.Log }

// unrecorded are the procedures that list and show objects. They are recorded only if they are refused. Output of consoles
// and runs, and files, are content: reads of them are recorded.
var unrecorded = map[string]bool{
	watariv1connect.ControlServiceGetStatusProcedure:         true,
	watariv1connect.ControlServiceWhoAmIProcedure:            true,
	watariv1connect.ControlServiceListHostsProcedure:         true,
	watariv1connect.ControlServiceListImagesProcedure:        true,
	watariv1connect.ControlServiceListClustersProcedure:      true,
	watariv1connect.ControlServiceListGuestsProcedure:        true,
	watariv1connect.ControlServiceListGuestConsolesProcedure: true,
	watariv1connect.ControlServiceListMigrationsProcedure:    true,
	watariv1connect.ControlServiceListCheckpointsProcedure:   true,
	watariv1connect.ControlServiceListVolumesProcedure:       true,
	watariv1connect.ControlServiceListStorageProcedure:       true,
	watariv1connect.ControlServiceListSitesProcedure:         true,
	watariv1connect.ControlServiceListRunsProcedure:          true,
	watariv1connect.ControlServiceRunProcessesProcedure:      true,
	watariv1connect.ControlServiceListUsersProcedure:         true,
	watariv1connect.ControlServiceListPoliciesProcedure:      true,
	watariv1connect.ControlServiceUsageProcedure:             true,
	watariv1connect.ControlServiceClusterTrafficProcedure:    true,
	watariv1connect.ControlServiceExplainProcedure:           true,
	watariv1connect.ControlServiceEventsProcedure:            true,
	watariv1connect.ControlServiceWatchProcedure:             true,
}

// record appends a call. message is the request, or an answer that names the object.
func (a *auditor) record(ctx context.Context, spec connect.Spec, peer connect.Peer, message any, err error) {
	code := connect.CodeOf(err)
	refused := err != nil && (code == connect.CodeUnauthenticated || code == connect.CodePermissionDenied)
	if a.log == nil || unrecorded[spec.Procedure] && !refused {
		return
	}
	e := newEntry(callerOf(ctx), peer.Addr, path.Base(spec.Procedure), objectOf(message))
	if err != nil {
		e.Error, e.Code = err.Error(), code.String()
		if withCode := new(connect.Error); errors.As(err, &withCode) {
			e.Error = withCode.Message()
		}
	}
	a.log.Record(e)
}

func newEntry(c caller, address, call, object string) *v1.AuditEntry {
	e := &v1.AuditEntry{At: timestamppb.Now(), Uid: c.uid, Address: address, Call: call, Object: object}
	if c.kind != "" {
		e.Caller = string(c.kind) + " " + c.name
	}
	return e
}

// recordHTTP records a request that is not a call of a service. status is the answer's status, and text its body if it is an
// error.
func (s *Server) recordHTTP(c caller, r *http.Request, call, object string, status int, text string) {
	if s.AuditLog == nil {
		return
	}
	e := newEntry(c, r.RemoteAddr, call, object)
	if status >= http.StatusBadRequest {
		e.Error, e.Code = strings.TrimSpace(text), strings.ToLower(strings.ReplaceAll(http.StatusText(status), " ", "_"))
		switch status {
		case http.StatusUnauthorized:
			e.Code = connect.CodeUnauthenticated.String()
		case http.StatusForbidden:
			e.Code = connect.CodePermissionDenied.String()
		case http.StatusInsufficientStorage:
			e.Code = connect.CodeResourceExhausted.String()
		}
	}
	s.AuditLog.Record(e)
}

// auditBlobs records users' reads and writes of blobs, and refused requests. Hosts read blobs all the time, by order, and
// are not recorded.
func (s *Server) auditBlobs(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answered := &answer{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answered, r)
		c := callerOf(r.Context())
		refused := answered.status == http.StatusUnauthorized || answered.status == http.StatusForbidden
		call := "GetBlob"
		if r.Method == http.MethodPut {
			call = "PutBlob"
		}
		if refused || c.kind == ca.KindUser && r.Method != http.MethodHead {
			s.recordHTTP(c, r, call, r.PathValue("digest"), answered.status, answered.text)
		}
	})
}

// answer remembers an answer's status, and its text if it is an error.
type answer struct {
	http.ResponseWriter
	status int
	text   string
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	if a.status >= http.StatusBadRequest && a.text == "" {
		a.text = string(p)
	}
	return a.ResponseWriter.Write(p)
}

// RecordSession records that a host's session has begun, or, with an error, that it was refused or has to wait.
func (s *Server) RecordSession(id ca.Identity, address string, err error) {
	if s.AuditLog == nil {
		return
	}
	e := newEntry(caller{kind: id.Kind, name: id.Name, uid: id.UID}, address, "Session", id.Name)
	if err != nil {
		e.Error, e.Code = err.Error(), connect.CodePermissionDenied.String()
	}
	s.AuditLog.Record(e)
}

// objectOf returns the name of the object that a message is about, or an empty string.
func objectOf(message any) string {
	m, _ := message.(proto.Message)
	if m == nil {
		return ""
	}
	r := m.ProtoReflect()
	for _, field := range []protoreflect.Name{"name", "guest", "cluster", "run", "migration", "host"} {
		if f := r.Descriptor().Fields().ByName(field); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() && r.Get(f).String() != "" {
			return r.Get(f).String()
		}
	}
	for i := range r.Descriptor().Fields().Len() { // CreateImage and others contain the whole object
		f := r.Descriptor().Fields().Get(i)
		if f.Kind() != protoreflect.MessageKind || f.IsList() || f.IsMap() || !r.Has(f) {
			continue
		}
		if object, is := r.Get(f).Message().Interface().(interface{ GetMeta() *v1.Meta }); is {
			return object.GetMeta().GetName()
		}
	}
	return ""
}

// WrapUnary implements connect.Interceptor.
func (a *auditor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, r)
		message := r.Any()
		if err == nil && objectOf(message) == "" { // a login's request has only the token; the answer has the name
			message = response.Any()
		}
		a.record(ctx, r.Spec(), r.Peer(), message, err)
		return response, err
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (a *auditor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. A stream is recorded when its first message has come, and again when it fails.
func (a *auditor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		heard := &firstMessage{StreamingHandlerConn: conn}
		heard.record = func() { a.record(ctx, conn.Spec(), conn.Peer(), heard.message, nil) }
		err := next(ctx, heard)
		if err != nil && connect.CodeOf(err) != connect.CodeCanceled {
			a.record(ctx, conn.Spec(), conn.Peer(), heard.message, err)
		}
		return err
	}
}

// firstMessage calls record when the first message has arrived.
type firstMessage struct {
	connect.StreamingHandlerConn
	message any // the first
	record  func()
}

// Receive implements connect.StreamingHandlerConn.
func (c *firstMessage) Receive(message any) error {
	err := c.StreamingHandlerConn.Receive(message)
	if err == nil && c.message == nil {
		c.message = message
		c.record()
	}
	return err
}

// Audit returns the last entries of the audit log.
func (s *Server) Audit(_ context.Context, r *connect.Request[v1.AuditRequest], out *connect.ServerStream[v1.AuditResponse]) error {
	if s.AuditLog == nil {
		return fail(connect.CodeFailedPrecondition, "this manager has no audit log")
	}
	entries, err := s.AuditLog.Last(int(r.Msg.Last))
	if err != nil {
		return connect.NewError(connect.CodeInternal, err)
	}
	for _, e := range entries {
		if err := out.Send(&v1.AuditResponse{Entry: e}); err != nil {
			return err
		}
	}
	return nil
}
