package api

// users.go - users and their quotas, and the tokens by which hosts and users join.

import (
	"cmp"
	"context"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"watari/ca"
	"watari/core"
	"watari/manager/store"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// Admin is the user that the manager makes at its first start.
	Admin = "admin"

	hostTokenValid = time.Hour
	userTokenValid = 24 * time.Hour
	maxTokenValid  = 30 * 24 * time.Hour
)

// WhoAmI returns the caller's own object.
func (s *Server) WhoAmI(ctx context.Context, _ *connect.Request[v1.WhoAmIRequest]) (*connect.Response[v1.WhoAmIResponse], error) {
	return connect.NewResponse(&v1.WhoAmIResponse{User: s.Store.Snapshot().Users[callerOf(ctx).name]}), nil
}

// newToken makes a token of the caller and its record; the secret is not in the record.
func (s *Server) newToken(ctx context.Context, user, site string, valid time.Duration) (ca.Token, *v1.Token) {
	token := s.Authority.NewToken()
	return token, &v1.Token{
		Meta:         &v1.Meta{Name: "t" + hex.EncodeToString(token.SecretHash()[:8]), Owner: callerOf(ctx).name, OwnerUid: callerOf(ctx).uid},
		SecretSha256: token.SecretHash(), Expires: timestamppb.New(time.Now().Add(valid)), User: user, Site: site,
	}
}

// CreateToken makes a token by which one host may join, once.
func (s *Server) CreateToken(ctx context.Context, r *connect.Request[v1.CreateTokenRequest]) (*connect.Response[v1.CreateTokenResponse], error) {
	if r.Msg.Site != "" {
		if err := checkName("site", r.Msg.Site); err != nil {
			return nil, err
		}
	}
	valid := hostTokenValid
	if r.Msg.Valid != nil {
		valid = r.Msg.Valid.AsDuration()
	}
	if valid <= 0 || valid > maxTokenValid {
		return nil, fail(connect.CodeInvalidArgument, "a token is valid for up to %v, not %v", maxTokenValid, valid)
	}
	token, record := s.newToken(ctx, "", r.Msg.Site, valid)
	if err := s.Store.Txn(ctx, store.Create(record), audit(ctx, "token", record.Meta.Name, "created for a host, valid for %v", valid)); err != nil {
		return nil, storeError(err)
	}
	return connect.NewResponse(&v1.CreateTokenResponse{Token: token.String(), Expires: record.Expires}), nil
}

// AddUser makes a user and a token for the user's first login. If an equal user exists, it makes only a new token. Earlier
// tokens of the user become void.
func (s *Server) AddUser(ctx context.Context, r *connect.Request[v1.AddUserRequest]) (*connect.Response[v1.AddUserResponse], error) {
	name, role := r.Msg.Name, r.Msg.Role
	if err := checkName("user", name); err != nil {
		return nil, err
	}
	if role == v1.Role_ROLE_UNSPECIFIED {
		role = v1.Role_ROLE_USER
	}
	if role != v1.Role_ROLE_USER && role != v1.Role_ROLE_ADMIN {
		return nil, fail(connect.CodeInvalidArgument, "unknown role %d", role)
	}
	token, record := s.newToken(ctx, name, "", userTokenValid)
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		ops := []store.Op{store.Create(record)}
		if u := snap.Users[name]; u == nil {
			ops = append(ops, store.Create(&v1.User{Meta: &v1.Meta{Name: name}, Role: role, Quota: newQuota(role, r.Msg.Quota)}),
				audit(ctx, "user", name, "added"))
		} else {
			if u.Disabled != nil {
				return nil, fail(connect.CodeFailedPrecondition, "%s: watari user disable %s --undo", disabledText(u), name)
			}
			if u.Role != role || !grants(u.Quota, r.Msg.Quota) {
				return nil, fail(connect.CodeAlreadyExists, "there is a user %s of another role or quota", name)
			}
			ops = append(ops, audit(ctx, "user", name, "given a new login token"))
		}
		return append(ops, deleteTokens(snap, name)...), nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.AddUserResponse{User: s.Store.Snapshot().Users[name], Token: token.String()}), nil
}

// Default limits of a new user who is no administrator, on the manager's disk, so that no single user fills it.
const (
	defaultImages = 50 << 30
	defaultOutput = 10 << 30
	defaultRuns   = 1000
)

// newQuota returns the quota of a new user, with the default limits where none is requested.
func newQuota(role v1.Role, asked *v1.Quota) *v1.Quota {
	q := proto.CloneOf(cmp.Or(asked, &v1.Quota{}))
	if role == v1.Role_ROLE_USER {
		q.ImageBytes = cmp.Or(q.ImageBytes, defaultImages)
		q.OutputBytes = cmp.Or(q.OutputBytes, defaultOutput)
		q.Runs = cmp.Or(q.Runs, defaultRuns)
	}
	return q
}

// grants reports whether a quota has all requested limits; 0 requests none.
func grants(have, asked *v1.Quota) bool {
	with := proto.CloneOf(cmp.Or(have, &v1.Quota{}))
	proto.Merge(with, cmp.Or(asked, &v1.Quota{}))
	return sameQuota(have, with)
}

func sameQuota(a, b *v1.Quota) bool {
	return proto.Equal(cmp.Or(a, &v1.Quota{}), cmp.Or(b, &v1.Quota{}))
}

// quotaText formats a quota for people.
func quotaText(q *v1.Quota) string {
	limits := []string{"any number of vCPUs", "any amount of memory"}
	if q.GetVcpus() > 0 {
		limits[0] = english.Plural(int(q.GetVcpus()), "vCPU", "")
	}
	if q.GetMemoryBytes() > 0 {
		limits[1] = humanize.IBytes(q.GetMemoryBytes()) + " of memory"
	}
	for _, of := range []struct {
		what  string
		bytes uint64
	}{{"volumes", q.GetVolumeBytes()}, {"images", q.GetImageBytes()}, {"runs' output", q.GetOutputBytes()}} {
		if of.bytes > 0 {
			limits = append(limits, humanize.IBytes(of.bytes)+" of "+of.what)
		}
	}
	if q.GetRuns() > 0 {
		limits = append(limits, english.Plural(int(q.GetRuns()), "run", ""))
	}
	return strings.Join(limits, ", ")
}

// deleteTokens deletes the tokens with which a user logs in.
func deleteTokens(snap *store.Snapshot, user string) []store.Op {
	return deleteTokensIf(snap, func(t *v1.Token) bool { return t.User == user })
}

// deleteAllTokens deletes the tokens with which a user logs in, and those that the user has made for hosts and other users: somebody
// who has the user's key may have made them.
func deleteAllTokens(snap *store.Snapshot, u *v1.User) []store.Op {
	return deleteTokensIf(snap, func(t *v1.Token) bool { return t.User == u.Meta.Name || t.Meta.OwnerUid == u.Meta.Uid })
}

func deleteTokensIf(snap *store.Snapshot, of func(*v1.Token) bool) (ops []store.Op) {
	for _, t := range snap.Tokens {
		if of(t) {
			ops = append(ops, store.Delete(proto.CloneOf(t)))
		}
	}
	return ops
}

// ListUsers lists all users for an administrator, and the caller alone for anyone else.
func (s *Server) ListUsers(ctx context.Context, _ *connect.Request[v1.ListUsersRequest]) (*connect.Response[v1.ListUsersResponse], error) {
	users, c := s.Store.Snapshot().Users, callerOf(ctx)
	resp := &v1.ListUsersResponse{}
	for _, name := range slices.Sorted(maps.Keys(users)) {
		if c.admin || name == c.name {
			resp.Users = append(resp.Users, users[name])
		}
	}
	return connect.NewResponse(resp), nil
}

// DisableUser refuses all further calls of a user, voids the user's tokens, and ends the user's streams. An administrator
// cannot disable themselves, so at least one is left who can enable others. If two administrators disable each other, one
// call succeeds.
func (s *Server) DisableUser(ctx context.Context, r *connect.Request[v1.DisableUserRequest]) (*connect.Response[v1.DisableUserResponse], error) {
	name, by := r.Msg.Name, callerOf(ctx).name
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		u := snap.Users[name]
		switch {
		case u == nil:
			return nil, missing("user", name, snap.Users)
		case snap.Users[by].GetDisabled() != nil:
			return nil, fail(connect.CodeUnauthenticated, "%s", disabledText(snap.Users[by]))
		case name == by:
			return nil, fail(connect.CodeFailedPrecondition, "you cannot disable yourself (user %s): another administrator must do it", name)
		case (u.Disabled == nil) == r.Msg.Undo:
			return nil, nil
		}
		u = proto.CloneOf(u)
		if r.Msg.Undo {
			u.Disabled = nil
			return []store.Op{store.Update(u), audit(ctx, "user", name, "enabled")}, nil
		}
		u.Disabled = timestamppb.Now()
		return append(deleteAllTokens(snap, u), store.Update(u), audit(ctx, "user", name, "disabled")), nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DisableUserResponse{User: s.Store.Snapshot().Users[name]}), nil
}

// RevokeUser voids a user's certificates and tokens, because somebody else may have the key. It also ends the user's streams
// and web console sessions.
func (s *Server) RevokeUser(ctx context.Context, r *connect.Request[v1.RevokeUserRequest]) (*connect.Response[v1.RevokeUserResponse], error) {
	name, c := r.Msg.Name, callerOf(ctx)
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		u := snap.Users[name]
		now := who(snap, c.identity())
		switch {
		case u == nil:
			return nil, missing("user", name, snap.Users)
		case now.kind == "": // revoked or disabled by another administrator meanwhile
			return nil, fail(connect.CodeUnauthenticated, "%s", now.why)
		case name == c.name:
			return nil, fail(connect.CodeFailedPrecondition, "you cannot revoke your own certificates (user %s): another administrator must do it", name)
		}
		u = proto.CloneOf(u)
		u.Generation = core.NextGeneration(u.Generation, time.Now())
		return append(deleteAllTokens(snap, u), store.Update(u), audit(ctx, "user", name, "certificates revoked")), nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.RevokeUserResponse{User: s.Store.Snapshot().Users[name]}), nil
}

// RemoveUser removes a user who has no clusters and no volumes. The user's certificates are refused from then on.
func (s *Server) RemoveUser(ctx context.Context, r *connect.Request[v1.RemoveUserRequest]) (*connect.Response[v1.RemoveUserResponse], error) {
	name := r.Msg.Name
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		u := snap.Users[name]
		switch {
		case u == nil:
			return nil, missing("user", name, snap.Users)
		case name == Admin || name == callerOf(ctx).name:
			return nil, fail(connect.CodeFailedPrecondition, "user %s cannot be removed: you cannot remove yourself, nor the first administrator, whom `watari user disable` keeps out", name)
		}
		for things, names := range map[string][]string{"clusters": ownedBy(name, snap.Clusters), "volumes": ownedBy(name, snap.Volumes)} {
			if len(names) > 0 {
				return nil, fail(connect.CodeFailedPrecondition, "user %s has %s: %s; delete them first", name, things, strings.Join(names, " "))
			}
		}
		ops := []store.Op{store.Delete(proto.CloneOf(u)), audit(ctx, "user", name, "removed")}
		return slices.Concat(ops, deleteAllTokens(snap, u), withoutStorage(ctx, snap, name)), nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.RemoveUserResponse{}), nil
}

// withoutStorage removes a user from storages, because a later user of that name may be another person. Storage that no
// other user may mount is forbidden, because storage without users is open to all.
func withoutStorage(ctx context.Context, snap *store.Snapshot, user string) (ops []store.Op) {
	for _, name := range slices.Sorted(maps.Keys(snap.Storages)) {
		st := snap.Storages[name]
		if !slices.Contains(st.Users, user) {
			continue
		}
		st = proto.CloneOf(st)
		st.Users = slices.DeleteFunc(st.Users, func(other string) bool { return other == user })
		if len(st.Users) > 0 {
			ops = append(ops, store.Update(st))
			continue
		}
		ops = append(ops, store.Delete(st), audit(ctx, "storage", name, "forbidden: its only user %s was removed", user))
	}
	return ops
}

// ownedBy returns the names of a user's objects, sorted.
func ownedBy[T interface{ GetMeta() *v1.Meta }](user string, all map[string]T) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name].GetMeta().GetOwner() == user {
			names = append(names, name)
		}
	}
	return names
}

// SetQuota changes the limits on a user's clusters. Existing clusters do not change.
func (s *Server) SetQuota(ctx context.Context, r *connect.Request[v1.SetQuotaRequest]) (*connect.Response[v1.SetQuotaResponse], error) {
	name := r.Msg.Name
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		u := snap.Users[name]
		if u == nil {
			return nil, missing("user", name, snap.Users)
		}
		if sameQuota(u.Quota, r.Msg.Quota) {
			return nil, nil
		}
		u = proto.CloneOf(u)
		u.Quota = r.Msg.Quota
		return []store.Op{store.Update(u), audit(ctx, "user", name, "quota set: %s", quotaText(u.Quota))}, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.SetQuotaResponse{User: s.Store.Snapshot().Users[name]}), nil
}
