package api

// join.go - JoinService: issues a certificate for a token, or for a certificate that is still valid.

import (
	"bytes"
	"context"
	"time"

	"watari/ca"
	"watari/core"
	"watari/manager/store"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// joiner implements JoinService.
type joiner struct{ s *Server }

// Join registers the bearer of a token and issues a certificate. Without a token, it renews the certificate that the caller
// shows.
func (j *joiner) Join(ctx context.Context, r *connect.Request[v1.JoinRequest]) (*connect.Response[v1.JoinResponse], error) {
	if err := j.s.mustLead(ctx); err != nil {
		return nil, err
	}
	id, site, err := j.admit(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	cert, err := j.s.Authority.Sign(r.Msg.Request, id)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return connect.NewResponse(&v1.JoinResponse{Certificate: cert, CaCertificate: j.s.Authority.CertificatePEM(), Name: id.Name, Site: site}), nil
}

// maxJoinBytes bounds a request to join, bytes. A token and a certificate request with a P-256 key have about 700.
const maxJoinBytes = 4 << 10

// admit returns who the caller becomes, and uses the token up. It does not verify strangers' signatures: that would cost the
// manager more than them. A damaged request does not use the token up.
func (j *joiner) admit(ctx context.Context, r *v1.JoinRequest) (id ca.Identity, site string, err error) {
	if r.Token == "" {
		id, err = j.renew(ctx, r.Request)
		return id, "", err
	}
	token, err := ca.ParseToken(r.Token)
	if err != nil {
		return id, "", connect.NewError(connect.CodeInvalidArgument, err)
	}
	unknown := fail(connect.CodePermissionDenied, "the token is unknown; ask for a new one")
	if findToken(j.s.Store.Snapshot(), token) == nil {
		return id, "", unknown
	}
	key, err := ca.RequestKeyHash(r.Request)
	if err != nil {
		return id, "", connect.NewError(connect.CodeInvalidArgument, err)
	}
	err = j.s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		record := findToken(snap, token)
		if record == nil {
			return nil, unknown
		}
		site = record.Site
		var ops []store.Op
		id, ops, err = admitBy(snap, record, r.Name, key)
		return ops, err
	})
	return id, site, err
}

// admitBy returns who the bearer of a token becomes, and the operations to write.
func admitBy(snap *store.Snapshot, record *v1.Token, hostName string, key []byte) (id ca.Identity, ops []store.Op, err error) {
	kind, name := ca.KindHost, hostName
	if record.User != "" {
		kind, name = ca.KindUser, record.User
	}
	if record.UsedBy != "" {
		id, err = usedToken(snap, record, kind, name, key)
		return id, nil, err
	}
	if time.Now().After(record.Expires.AsTime()) {
		return id, nil, fail(connect.CodePermissionDenied, "the token expired at %s; ask for a new one", record.Expires.AsTime().Format(time.RFC3339))
	}
	used := proto.CloneOf(record)
	used.UsedBy, used.UsedKeySha256 = name, key
	ops = append(ops, store.Update(used))
	if kind == ca.KindUser {
		u := snap.Users[name]
		if u == nil {
			return id, nil, fail(connect.CodePermissionDenied, "user %s was removed", name)
		}
		used.UsedUid = u.Meta.Uid
		return ca.Identity{Kind: kind, Name: name, UID: u.Meta.Uid, Generation: u.Generation}, append(ops, joined("user", name, "logged in by token")), nil
	}
	if record.Host != "" {
		known := snap.Hosts[name]
		if name != record.Host || known == nil || known.Meta.Uid != record.UsedUid || known.Meta.Deleting != nil {
			return id, nil, fail(connect.CodePermissionDenied, "the token is for host %s alone, until that is removed, and not for this host, %s; ask for a token for a new host", record.Host, name)
		}
		return ca.Identity{Kind: kind, Name: name, UID: known.Meta.Uid, Generation: known.Generation}, append(ops, joined("host", name, "got a new certificate by token")), nil
	}
	host, err := core.NewHost(snap, name, store.NewUID())
	if err != nil {
		return id, nil, err
	}
	used.UsedUid = host.Meta.Uid
	host.TokenSite = record.Site
	host.TrustGroup = record.Meta.Owner // hosts joined by one administrator trust each other
	return ca.Identity{Kind: kind, Name: name, UID: host.Meta.Uid}, append(ops, store.Create(host), joined("host", name, "registered by token")), nil
}

// usedToken repeats the answer to the host or user that used a token, if the key is the same and the object still exists.
func usedToken(snap *store.Snapshot, record *v1.Token, kind ca.Kind, name string, key []byte) (ca.Identity, error) {
	id := ca.Identity{Kind: kind, Name: name, UID: record.UsedUid}
	meta := snap.Hosts[name].GetMeta()
	id.Generation = snap.Hosts[name].GetGeneration()
	if kind == ca.KindUser {
		meta, id.Generation = snap.Users[name].GetMeta(), snap.Users[name].GetGeneration()
	}
	if record.UsedBy != name || !bytes.Equal(record.UsedKeySha256, key) || meta.GetUid() != record.UsedUid {
		return id, fail(connect.CodePermissionDenied, "the token was used already, by %s; ask for a new one", record.UsedBy)
	}
	return id, nil
}

func joined(kind, name, message string) store.Op {
	return store.Record(&v1.Event{Severity: v1.Severity_SEVERITY_INFO, Kind: kind, Name: name, Actor: name, Message: message})
}

func findToken(snap *store.Snapshot, token ca.Token) *v1.Token {
	hash := token.SecretHash()
	for _, t := range snap.Tokens {
		if bytes.Equal(t.SecretSha256, hash) {
			return t
		}
	}
	return nil
}

// renew returns the identity in the caller's certificate, which identify has accepted. The new certificate is for the same
// key.
func (j *joiner) renew(ctx context.Context, request []byte) (ca.Identity, error) {
	c := callerOf(ctx)
	if c.kind != ca.KindUser && c.kind != ca.KindHost {
		return ca.Identity{}, fail(connect.CodeUnauthenticated, "a token is needed, or a certificate that is still good: %s", c.why)
	}
	key, err := ca.RequestKeyHash(request)
	if err != nil {
		return ca.Identity{}, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if !bytes.Equal(key, ca.KeyHash(c.cert)) {
		return ca.Identity{}, fail(connect.CodePermissionDenied, "a certificate is renewed for its own key alone; for another key, ask for a token")
	}
	return c.identity(), nil
}
