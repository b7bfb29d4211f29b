package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"watari/ca"
	"watari/hostlink"
	"watari/internal/protocol"
	"watari/manager/store"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestClusterFromNothing(t *testing.T) {
	r := start(t, t.TempDir())
	ctx := bounded(t)
	r.image("mpi")
	_, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(2)}))
	wantCode(t, err, connect.CodeResourceExhausted, "no host")
	r.host("a1")
	created, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(2)}))
	if err != nil || created.Msg.Existed || created.Msg.Cluster.CaKey != nil {
		t.Fatal(created, err)
	}
	watch, err := r.admin.Watch(ctx, connect.NewRequest(&v1.WatchRequest{Kind: "cluster", Name: "md"}))
	if err != nil {
		t.Fatal(err)
	}
	for watch.Receive() && watch.Msg().Cluster.GetState() != v1.ClusterState_CLUSTER_STATE_READY {
	}
	if watch.Err() != nil || len(watch.Msg().Guests) != 2 || watch.Msg().Guests[1].Address != "10.77.0.11" {
		t.Fatal(watch.Err(), watch.Msg())
	}

	again, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(2)}))
	if err != nil || !again.Msg.Existed {
		t.Fatal(again, err)
	}
	_, err = r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(3)}))
	wantCode(t, err, connect.CodeAlreadyExists, "2 guests, not 3")
	large := spec(2)
	large.Shape.MemoryBytes = 64 << 30
	_, err = r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "big", Spec: large}))
	wantCode(t, err, connect.CodeResourceExhausted, "a1", "memory")
	_, err = r.admin.RemoveImage(ctx, connect.NewRequest(&v1.RemoveImageRequest{Name: "mpi"}))
	wantCode(t, err, connect.CodeFailedPrecondition, "md")
	_, err = r.admin.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: "a1"}))
	wantCode(t, err, connect.CodeFailedPrecondition, "md-0")
	_, err = r.admin.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: "a1", Lost: true}))
	wantCode(t, err, connect.CodeFailedPrecondition, "connected")
	_, err = r.admin.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0", ToHost: "a9"}))
	wantCode(t, err, connect.CodeNotFound, "a1")
	_, err = r.admin.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0", ToHost: "a1"}))
	wantCode(t, err, connect.CodeFailedPrecondition, "already")

	if _, err := r.admin.DeleteCluster(ctx, connect.NewRequest(&v1.DeleteClusterRequest{Name: "md"})); err != nil {
		t.Fatal(err)
	}
	for watch.Receive() && !watch.Msg().Gone {
	}
	if !watch.Msg().GetGone() {
		t.Fatal(watch.Err())
	}
	if _, err := r.admin.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: "a1"})); err != nil {
		t.Fatal(err)
	}
	r.await("a1 is forgotten", func() bool {
		resp, err := r.admin.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
		return err == nil && len(resp.Msg.Hosts) == 0
	})
}

func TestTokensAreForOneUse(t *testing.T) {
	r := start(t, t.TempDir())
	token := r.hostToken()
	_, _, err := r.join(token, "Not A Name")
	wantCode(t, err, connect.CodeInvalidArgument, "cannot be a host's name")
	key, request, err := ca.NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	// The answer may be lost: a request with the same key gets the same answer.
	for range 2 {
		if _, _, err := r.joinWith(token, "a1", key, request); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a1", "a2"} {
		_, _, err = r.join(token, name)
		wantCode(t, err, connect.CodePermissionDenied, "used already, by a1")
	}
	_, _, err = r.join(r.hostToken(), "a1")
	wantCode(t, err, connect.CodeAlreadyExists, "remove it first")
}

// A stranger's request costs the manager little, and a mistake of the bearer does not use up the token.
func TestRequestsToJoinAreSmallAndNotVerifiedForStrangers(t *testing.T) {
	r := start(t, t.TempDir())
	token := r.hostToken()
	for size, code := range map[int]connect.Code{4 << 10: connect.CodeInvalidArgument, 4<<10 + 1: connect.CodeResourceExhausted, 5 << 10: connect.CodeResourceExhausted} {
		request := &v1.JoinRequest{Token: token, Name: "a1", Request: bytes.Repeat([]byte("x"), 3<<10)}
		request.Request = bytes.Repeat([]byte("x"), 3<<10+size-proto.Size(request))
		if n := proto.Size(request); n != size {
			t.Fatalf("the request has %d bytes, not %d", n, size)
		}
		_, _, err := r.joinWith(token, request.Name, nil, request.Request)
		wantCode(t, err, code)
	}
	_, _, err := r.joinWith(token, "a1", nil, []byte("no request"))
	wantCode(t, err, connect.CodeInvalidArgument, "PEM")
	// The token is checked first: a stranger learns nothing about the request's content, and cannot make the manager parse
	// it.
	strange := mustToken(t, token)
	strange.Secret[0]++
	_, _, err = r.joinWith(strange.String(), "a1", nil, []byte("no request"))
	wantCode(t, err, connect.CodePermissionDenied, "unknown")
	if _, _, err := r.join(token, "a1"); err != nil {
		t.Fatal(err)
	}
}

func TestAHostIsAtTheSiteOfItsToken(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	for name, site := range map[string]string{"b1": "b", "x1": ""} {
		token, err := r.admin.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Site: site}))
		if err != nil {
			t.Fatal(err)
		}
		pair, _, err := r.join(token.Msg.Token, name)
		if err != nil {
			t.Fatal(err)
		}
		r.dial(name, pair) // its agent says that it is at site a
	}
	for name, site := range map[string]string{"b1": "b", "x1": "a"} {
		r.await("host "+name+" is at site "+site, func() bool {
			list, err := r.admin.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
			return err == nil && slices.ContainsFunc(list.Msg.Hosts, func(h *v1.Host) bool { return h.Meta.Name == name && h.Info.GetSite() == site })
		})
	}
}

func TestCertificatesAreRenewed(t *testing.T) {
	r := start(t, t.TempDir())
	pair, _, err := r.join(r.hostToken(), "a1")
	if err != nil {
		t.Fatal(err)
	}
	request, err := ca.NewCSR(pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	ask := connect.NewRequest(&v1.JoinRequest{Request: request})
	resp, err := watariv1connect.NewJoinServiceClient(r.client(pair), r.url).Join(bounded(t), ask)
	if err != nil || resp.Msg.Name != "a1" || bytes.Equal(resp.Msg.Certificate, pair.Certificate) {
		t.Fatal(resp, err)
	}
	_, another, err := ca.NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	_, err = watariv1connect.NewJoinServiceClient(r.client(pair), r.url).Join(bounded(t), connect.NewRequest(&v1.JoinRequest{Request: another}))
	wantCode(t, err, connect.CodePermissionDenied, "for its own key alone")
	_, ann := r.user("ann", nil)
	_, err = watariv1connect.NewJoinServiceClient(ann, r.url).Join(bounded(t), connect.NewRequest(&v1.JoinRequest{Request: another}))
	wantCode(t, err, connect.CodePermissionDenied, "for its own key alone")
	seen := r.audited() // of the renewals, the log has the caller, too
	for _, want := range []string{"Join a1", "host a1 Join a1", "host a1 Join  permission_denied", "user ann Join  permission_denied"} {
		if !slices.Contains(seen, want) {
			t.Errorf("not in the audit log: %q; it has %q", want, seen)
		}
	}
	r.dial("a1", ca.KeyPair{Certificate: resp.Msg.Certificate, Key: pair.Key})
	if _, err := r.admin.RemoveHost(bounded(t), connect.NewRequest(&v1.RemoveHostRequest{Name: "a1"})); err != nil {
		t.Fatal(err)
	}
	_, err = watariv1connect.NewJoinServiceClient(r.client(pair), r.url).Join(bounded(t), ask)
	wantCode(t, err, connect.CodeUnauthenticated, "removed")
}

func TestStrangersAreRefused(t *testing.T) {
	r := start(t, t.TempDir())
	ctx := bounded(t)
	noCert := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.JoinTLS(mustToken(t, r.hostToken()))}}
	_, err := watariv1connect.NewControlServiceClient(noCert, r.url).GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated)
	resp, err := noCert.Get(r.url + "/blobs/sha256:" + strings.Repeat("0", 64))
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatal(resp, err)
	}
	long, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	long.Header.Set("X-Long", strings.Repeat("x", 40<<10))
	if resp, err := noCert.Do(long); err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("long headers: %v, %v", resp, err)
	}
	pair, _, err := r.join(r.hostToken(), "a1")
	if err != nil {
		t.Fatal(err)
	}
	host := r.client(pair)
	_, err = watariv1connect.NewControlServiceClient(host, r.url).GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated, "host")
	if status := put(t, host, r.url+"/blobs/sha256:"+strings.Repeat("0", 64), "x"); status != http.StatusForbidden {
		t.Fatal(status)
	}
	if _, err := r.admin.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: "a1"})); err != nil {
		t.Fatal(err)
	}
	config, err := ca.ClientTLS(r.caPEM, pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	var refusal *hostlink.Refusal
	if err := hostlink.Dial(ctx, r.url, config, http.NotFoundHandler()); !errors.As(err, &refusal) || !strings.Contains(refusal.Reason, "removed") {
		t.Fatal(err)
	}
	// A later host of the same name does not make the old certificate good.
	if _, _, err := r.join(r.hostToken(), "a1"); err != nil {
		t.Fatal(err)
	}
	if err := hostlink.Dial(ctx, r.url, config, http.NotFoundHandler()); !errors.As(err, &refusal) {
		t.Fatal(err)
	}
}

func TestWhatIsWrongOnAHostIsToldToAdministrators(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.problems = []string{"network: another filter drops packets"}
	r.host("a1")
	user, _ := r.user("ann", nil)
	for name, who := range map[string]watariv1connect.ControlServiceClient{"admin": r.admin, "ann": user} {
		status, err := who.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		hosts, err := who.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		told := slices.Contains(status.Msg.Problems, "host a1: network: another filter drops packets")
		shown := slices.Contains(hosts.Msg.Hosts[0].Problems, "network: another filter drops packets")
		if told != (name == "admin") || shown != told {
			t.Errorf("%s: status %q, host %q", name, status.Msg.Problems, hosts.Msg.Hosts[0].Problems)
		}
	}
}

func TestClustersMadeAtOnceShareNothing(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	r.host("a1")
	ann, _ := r.user("ann", &v1.Quota{Vcpus: 3})
	var made sync.Map
	var group sync.WaitGroup
	for _, name := range []string{"md", "lu", "cg", "ft", "is", "mg"} {
		group.Go(func() {
			created, err := ann.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: name, Spec: spec(1)}))
			if err != nil {
				if connect.CodeOf(err) != connect.CodeResourceExhausted {
					t.Error(err)
				}
			} else if other, taken := made.LoadOrStore(created.Msg.Cluster.Prefix, name); taken {
				t.Errorf("%s and %s have the same prefix", name, other)
			}
		})
	}
	group.Wait()
	list, err := ann.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{}))
	if err != nil || len(list.Msg.Clusters) != 3 {
		t.Errorf("%d clusters within a quota of 3: %v", len(list.Msg.Clusters), err)
	}
}

// A host whose certificates were revoked is out until it has another one, by a token for it alone. It stays the same host.
func TestRevokedCertificatesOfAHostAreVoid(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	used := r.hostToken()
	pair, _, err := r.join(used, "a1")
	if err != nil {
		t.Fatal(err)
	}
	r.dial("a1", pair)
	connected := func() bool {
		_, _, is := r.deps.Load().Sessions.Observed("a1")
		return is
	}
	r.await("its session begins", connected)
	revoke := func(by watariv1connect.ControlServiceClient, name string) (*v1.RevokeHostResponse, error) {
		response, err := by.RevokeHost(ctx, connect.NewRequest(&v1.RevokeHostRequest{Name: name}))
		if err != nil {
			return nil, err
		}
		return response.Msg, nil
	}
	ann, _ := r.user("ann", nil)
	_, err = revoke(ann, "a1")
	wantCode(t, err, connect.CodePermissionDenied, "administrator")
	_, err = revoke(r.admin, "b1")
	wantCode(t, err, connect.CodeNotFound)
	uid := r.deps.Load().Store.Snapshot().Hosts["a1"].Meta.Uid
	first, err := revoke(r.admin, "a1")
	if err != nil {
		t.Fatal(err)
	}
	r.await("its session ends", func() bool { return !connected() })
	request, err := ca.NewCSR(pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	_, err = watariv1connect.NewJoinServiceClient(r.client(pair), r.url).Join(ctx, connect.NewRequest(&v1.JoinRequest{Request: request}))
	wantCode(t, err, connect.CodeUnauthenticated, "revoked")
	config, err := ca.ClientTLS(r.caPEM, pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	var refusal *hostlink.Refusal
	if err := hostlink.Dial(ctx, r.url, config, http.NewServeMux()); !errors.As(err, &refusal) || !strings.Contains(refusal.Reason, "revoked") || refusal.Removed {
		t.Errorf("another session: %v", err)
	}
	joins := watariv1connect.NewJoinServiceClient(&http.Client{Transport: &http.Transport{TLSClientConfig: ca.JoinTLS(mustToken(t, used))}}, r.url)
	_, err = joins.Join(ctx, connect.NewRequest(&v1.JoinRequest{Token: used, Name: "a1", Request: request}))
	wantCode(t, err, connect.CodePermissionDenied, "unknown")
	_, _, err = r.join(first.Token, "a2")
	wantCode(t, err, connect.CodePermissionDenied, "for host a1")
	second, err := revoke(r.admin, "a1")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = r.join(first.Token, "a1")
	wantCode(t, err, connect.CodePermissionDenied, "unknown")
	pair, _, err = r.join(second.Token, "a1")
	if err != nil {
		t.Fatal(err)
	}
	r.dial("a1", pair)
	r.await("it is back", connected)
	if now := r.deps.Load().Store.Snapshot().Hosts["a1"].Meta.Uid; now != uid {
		t.Errorf("it is another host: %s, not %s", now, uid)
	}
	if request, err = ca.NewCSR(pair.Key); err != nil {
		t.Fatal(err)
	}
	renewed, err := watariv1connect.NewJoinServiceClient(r.client(pair), r.url).Join(ctx, connect.NewRequest(&v1.JoinRequest{Request: request}))
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := ca.ParseCertificate(renewed.Msg.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := ca.IdentityOf(certificate); err != nil || id.UID != uid || id.Generation != second.Host.Generation || id.Generation <= first.Host.Generation {
		t.Errorf("renewed: %v, %v", err, id)
	}
	third, err := revoke(r.admin, "a1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: "a1"})); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.join(r.hostToken(), "a1"); err != nil {
		t.Fatal(err)
	}
	_, _, err = r.join(third.Token, "a1")
	wantCode(t, err, connect.CodePermissionDenied, "for host a1")
}

func TestAQuarantinedHostIsOut(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.host("a2")
	pair, _, err := r.join(r.hostToken(), "a1")
	if err != nil {
		t.Fatal(err)
	}
	r.dial("a1", pair)
	quarantine := func(undo bool) *v1.Host {
		t.Helper()
		got, err := r.admin.QuarantineHost(ctx, connect.NewRequest(&v1.QuarantineHostRequest{Name: "a1", Grace: durationpb.New(time.Hour), Undo: undo}))
		if err != nil {
			t.Fatal(err)
		}
		return got.Msg.Host
	}
	ann, _ := r.user("ann", nil)
	_, err = ann.QuarantineHost(ctx, connect.NewRequest(&v1.QuarantineHostRequest{Name: "a1"}))
	wantCode(t, err, connect.CodePermissionDenied, "administrator")
	quarantine(false)
	state := func() v1.HostState {
		hosts, err := r.admin.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{Name: "a1"}))
		if err != nil {
			t.Fatal(err)
		}
		return hosts.Msg.Hosts[0].State
	}
	r.await("it has no guests, so it is cut off at once", func() bool { return state() == v1.HostState_HOST_STATE_QUARANTINED })
	r.await("its session ends", func() bool {
		_, _, connected := r.deps.Load().Sessions.Observed("a1")
		return !connected
	})
	request, err := ca.NewCSR(pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	_, err = watariv1connect.NewJoinServiceClient(r.client(pair), r.url).Join(ctx, connect.NewRequest(&v1.JoinRequest{Request: request}))
	wantCode(t, err, connect.CodeUnauthenticated, "quarantined")
	config, err := ca.ClientTLS(r.caPEM, pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	var refusal *hostlink.Refusal
	if err := hostlink.Dial(ctx, r.url, config, http.NewServeMux()); !errors.As(err, &refusal) || !strings.Contains(refusal.Reason, "quarantined") || refusal.Removed {
		t.Errorf("another session: %v", err)
	}
	resp, err := r.client(pair).Get(r.url + "/blobs/sha256:" + hexOf("kernel"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a blob: %s", resp.Status)
	}
	if h := quarantine(true); h.Quarantine != nil || !h.Draining {
		t.Errorf("after the undo: %v", h)
	}
	r.await("it is let in again", func() bool { return state() == v1.HostState_HOST_STATE_DRAINED })
}

func TestRevokedCertificatesAreVoid(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	ann, annHTTP := r.user("ann", nil)
	revoke := func(by watariv1connect.ControlServiceClient, name string) error {
		_, err := by.RevokeUser(ctx, connect.NewRequest(&v1.RevokeUserRequest{Name: name}))
		return err
	}
	wantCode(t, revoke(ann, "admin"), connect.CodePermissionDenied, "administrator")
	wantCode(t, revoke(r.admin, "admin"), connect.CodeFailedPrecondition, "your own certificates")
	wantCode(t, revoke(r.admin, "nobody"), connect.CodeNotFound)
	early, err := r.admin.AddUser(ctx, connect.NewRequest(&v1.AddUserRequest{Name: "ann"}))
	if err != nil {
		t.Fatal(err)
	}
	following, err := ann.Events(ctx, connect.NewRequest(&v1.EventsRequest{Follow: true}))
	if err != nil || !following.Receive() {
		t.Fatal(err)
	}
	_, key := r.link(ann)
	_, unused := r.link(ann)
	inBrowser := r.browser()
	if status := inBrowser.logIn(key); status != http.StatusNoContent {
		t.Fatal(status)
	}
	if err := revoke(r.admin, "ann"); err != nil {
		t.Fatal(err)
	}
	if status := r.browser().logIn(unused); status != http.StatusUnauthorized {
		t.Errorf("a link from before logs in: %d", status)
	}
	if status, text := inBrowser.do(http.MethodPost, "/console/api/watari.v1.ControlService/WhoAmI", "{}"); status != http.StatusUnauthorized {
		t.Errorf("the web console's session goes on: %d, %s", status, text)
	}
	for following.Receive() {
	}
	wantCode(t, following.Err(), connect.CodeUnauthenticated, "revoked")
	_, err = watariv1connect.NewJoinServiceClient(annHTTP, r.url).Join(ctx, connect.NewRequest(&v1.JoinRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated, "revoked")
	_, _, err = r.join(early.Msg.Token, "")
	wantCode(t, err, connect.CodePermissionDenied)
	again, err := r.admin.AddUser(ctx, connect.NewRequest(&v1.AddUserRequest{Name: "ann"}))
	if err != nil {
		t.Fatal(err)
	}
	pair, _, err := r.join(again.Msg.Token, "")
	if err != nil {
		t.Fatal(err)
	}
	anew := watariv1connect.NewControlServiceClient(r.client(pair), r.url)
	if _, err := anew.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{})); err != nil {
		t.Errorf("with the new certificate: %v", err)
	}
	request, err := ca.NewCSR(pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	renewed, err := watariv1connect.NewJoinServiceClient(r.client(pair), r.url).Join(ctx, connect.NewRequest(&v1.JoinRequest{Request: request}))
	if err != nil {
		t.Fatal(err)
	}
	anew = watariv1connect.NewControlServiceClient(r.client(ca.KeyPair{Certificate: renewed.Msg.Certificate, Key: pair.Key}), r.url)
	if _, err := anew.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{})); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
	_, err = ann.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated, "revoked")
}

func TestADisabledUserIsOut(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	r.host("a1")
	ann, annHTTP := r.user("ann", nil)
	disable := func(by watariv1connect.ControlServiceClient, name string, undo bool) error {
		_, err := by.DisableUser(ctx, connect.NewRequest(&v1.DisableUserRequest{Name: name, Undo: undo}))
		return err
	}
	ops := r.administrator("ops")

	wantCode(t, disable(ann, "ops", false), connect.CodePermissionDenied, "administrator")
	wantCode(t, disable(ops, "ops", false), connect.CodeFailedPrecondition, "cannot disable yourself")
	wantCode(t, disable(ops, "nobody", false), connect.CodeNotFound)
	if _, err := ann.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(1)})); err != nil {
		t.Fatal(err)
	}
	again, err := r.admin.AddUser(ctx, connect.NewRequest(&v1.AddUserRequest{Name: "ann"}))
	if err != nil {
		t.Fatal(err)
	}
	following, err := ann.Events(ctx, connect.NewRequest(&v1.EventsRequest{Follow: true}))
	if err != nil || !following.Receive() {
		t.Fatal(err)
	}
	for range 2 { // a second request changes nothing
		if err := disable(r.admin, "ann", false); err != nil {
			t.Fatal(err)
		}
	}

	for following.Receive() {
	}
	wantCode(t, following.Err(), connect.CodeUnauthenticated, "disabled")
	_, err = ann.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated, "disabled")
	_, _, err = r.join(again.Msg.Token, "")
	wantCode(t, err, connect.CodePermissionDenied)
	_, err = r.admin.AddUser(ctx, connect.NewRequest(&v1.AddUserRequest{Name: "ann"}))
	wantCode(t, err, connect.CodeFailedPrecondition, "watari user disable ann --undo")
	resp, err := annHTTP.Get(r.url + "/blobs/sha256:" + hexOf("kernel"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a blob: %s", resp.Status)
	}
	_, err = watariv1connect.NewJoinServiceClient(annHTTP, r.url).Join(ctx, connect.NewRequest(&v1.JoinRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated, "disabled")
	if list, err := r.admin.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{})); err != nil || len(list.Msg.Clusters) != 1 {
		t.Errorf("the clusters of the disabled: %v, %v", list, err)
	}

	if err := disable(r.admin, "ann", true); err != nil {
		t.Fatal(err)
	}
	if _, err := ann.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{})); err != nil {
		t.Errorf("after the undo: %v", err)
	}
	// Another administrator disables the first administrator, who cannot enable itself.
	following, err = r.admin.Events(ctx, connect.NewRequest(&v1.EventsRequest{Follow: true}))
	if err != nil || !following.Receive() {
		t.Fatal(err)
	}
	console := r.browser()
	if _, key := r.link(r.admin); console.logIn(key) != http.StatusNoContent {
		t.Fatal("no session of the web console")
	}
	forHost, err := r.admin.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Site: "a"}))
	if err != nil {
		t.Fatal(err)
	}
	forUser, err := r.admin.AddUser(ctx, connect.NewRequest(&v1.AddUserRequest{Name: "bob"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := disable(ops, "admin", false); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{forHost.Msg.Token, forUser.Msg.Token} {
		_, _, err = r.join(token, "b1")
		wantCode(t, err, connect.CodePermissionDenied)
	}
	for following.Receive() {
	}
	wantCode(t, following.Err(), connect.CodeUnauthenticated, "disabled")
	_, err = watariv1connect.NewJoinServiceClient(r.http, r.url).Join(ctx, connect.NewRequest(&v1.JoinRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated, "disabled")
	if status, body := console.do(http.MethodPost, "/console/api/watari.v1.ControlService/WhoAmI", "{}"); status != http.StatusUnauthorized {
		t.Errorf("the web console: %d %s", status, body)
	}
	wantCode(t, disable(r.admin, "admin", true), connect.CodeUnauthenticated, "disabled")
	wantCode(t, disable(r.admin, "ops", false), connect.CodeUnauthenticated, "disabled")
	// Root of the manager's machine overrides that.
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if err := EnableAdmin(filepath.Join(r.dir, "manager")); err != nil {
		t.Fatal(err)
	}
	start(t, r.dir) // start waits until the manager answers admin
}

func TestImagesArePrivateUnlessPublished(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	r.host("a1")
	ann, _ := r.user("ann", nil)
	bob, _ := r.user("bob", nil)
	mpi, err := ann.ListImages(ctx, connect.NewRequest(&v1.ListImagesRequest{Name: "mpi"}))
	if err != nil || len(mpi.Msg.Images) != 1 {
		t.Fatalf("a published image: %v, %v", mpi, err)
	}
	// The same blobs under another name, owned by ann.
	secret := proto.CloneOf(mpi.Msg.Images[0])
	secret.Meta = &v1.Meta{Name: "secret"}
	if _, err := ann.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: secret})); err != nil {
		t.Fatal(err)
	}
	seen := func(by watariv1connect.ControlServiceClient) bool {
		t.Helper()
		list, err := by.ListImages(ctx, connect.NewRequest(&v1.ListImagesRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list.Msg.Images, func(i *v1.Image) bool { return i.Meta.Name == "secret" })
	}
	publish := func(by watariv1connect.ControlServiceClient, undo bool) error {
		_, err := by.PublishImage(ctx, connect.NewRequest(&v1.PublishImageRequest{Name: "secret", Undo: undo}))
		return err
	}
	create := func(cluster string) error {
		asked := spec(1)
		asked.Image = "secret"
		_, err := bob.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: cluster, Spec: asked}))
		return err
	}
	if !seen(ann) || !seen(r.admin) || seen(bob) {
		t.Errorf("seen by its owner %t, an administrator %t, another user %t", seen(ann), seen(r.admin), seen(bob))
	}
	if err := create("one"); connect.CodeOf(err) != connect.CodeNotFound || strings.Contains(err.Error(), "mpi, secret") {
		t.Errorf("another user's cluster of it: %v", err)
	}
	_, err = bob.ListImages(ctx, connect.NewRequest(&v1.ListImagesRequest{Name: "secret"}))
	wantCode(t, err, connect.CodeNotFound)
	wantCode(t, publish(bob, false), connect.CodeNotFound)
	for _, name := range []string{"secret", "none"} {
		_, err = bob.RemoveImage(ctx, connect.NewRequest(&v1.RemoveImageRequest{Name: name}))
		if connect.CodeOf(err) != connect.CodeNotFound || strings.Contains(err.Error(), "mpi, secret") {
			t.Errorf("another user removes image %s: %v", name, err)
		}
	}
	_, err = bob.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: secret, Publish: true}))
	wantCode(t, err, connect.CodePermissionDenied, "take another name")
	replace := func() {
		t.Helper()
		for _, name := range []string{"secret", "mpi"} {
			other := proto.CloneOf(mpi.Msg.Images[0])
			other.Meta, other.Digest, other.KernelArgs = &v1.Meta{Name: name}, "", "other"
			_, err = bob.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: other, Publish: true}))
			wantCode(t, err, connect.CodePermissionDenied, "take another name")
		}
	}
	replace()

	if err := publish(ann, false); err != nil {
		t.Fatal(err)
	}
	if err := create("two"); err != nil || !seen(bob) {
		t.Errorf("after it was published, another user sees it: %t, and makes a cluster of it: %v", seen(bob), err)
	}
	wantCode(t, publish(bob, true), connect.CodePermissionDenied)
	replace()
	if err := publish(ann, true); err != nil {
		t.Fatal(err)
	}
	if err := create("three"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("after that was undone: %v", err)
	}
	if list, err := bob.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{})); err != nil || len(list.Msg.Clusters) != 1 {
		t.Errorf("the cluster that was made meanwhile: %v, %v", list, err)
	}
}

// Hosts start guests by the digest of an image's content. Who registers the same content with other facts must not change how they
// start.
func TestTheSameContentHasTheSameFacts(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	list, err := r.admin.ListImages(ctx, connect.NewRequest(&v1.ListImagesRequest{Name: "mpi"}))
	if err != nil {
		t.Fatal(err)
	}
	bob, _ := r.user("bob", nil)
	create := func(change func(*v1.Image)) error {
		image := proto.CloneOf(list.Msg.Images[0])
		image.Meta = &v1.Meta{Name: "zz"}
		change(image)
		_, err := bob.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: image}))
		return err
	}
	for _, change := range []func(i *v1.Image){
		func(i *v1.Image) {
			if i.RootType = "erofs"; list.Msg.Images[0].RootType == "erofs" {
				i.RootType = "squashfs"
			}
		},
		func(i *v1.Image) { i.Mpi = []string{"other"} },
		func(i *v1.Image) { i.Pm = !i.Pm },
	} {
		wantCode(t, create(change), connect.CodeAlreadyExists, "there is an image with the same content")
	}
	wantCode(t, create(func(i *v1.Image) { i.Source = strings.Repeat("x", 16<<10) }), connect.CodeInvalidArgument, "at most 16 KiB")
	if err := create(func(i *v1.Image) { i.Source = "the same" }); err != nil {
		t.Error(err)
	}
}

func TestAnImageThatClustersUseIsNotReplaced(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	r.host("a1")
	ann, _ := r.user("ann", nil)
	if _, err := ann.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(1)})); err != nil {
		t.Fatal(err)
	}
	list, err := r.admin.ListImages(ctx, connect.NewRequest(&v1.ListImagesRequest{Name: "mpi"}))
	if err != nil {
		t.Fatal(err)
	}
	create := func(name, arguments string) error {
		image := proto.CloneOf(list.Msg.Images[0])
		image.Meta, image.Digest, image.KernelArgs = &v1.Meta{Name: name}, "", arguments
		_, err := r.admin.CreateImage(ctx, connect.NewRequest(&v1.CreateImageRequest{Image: image}))
		return err
	}
	remove := func(name string) error {
		_, err := r.admin.RemoveImage(ctx, connect.NewRequest(&v1.RemoveImageRequest{Name: name}))
		return err
	}
	wantCode(t, create("mpi", "other"), connect.CodeFailedPrecondition, "image mpi is used by clusters: md")
	wantCode(t, remove("mpi"), connect.CodeFailedPrecondition, "image mpi is used by clusters: md")
	// The content also has another name: it stays, and the cluster keeps it.
	if err := errors.Join(create("kept", list.Msg.Images[0].KernelArgs), create("mpi", "other")); err != nil {
		t.Fatal(err)
	}
	wantCode(t, remove("kept"), connect.CodeFailedPrecondition, "image kept is used by clusters: md")
	clusters, err := ann.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{}))
	if err != nil || clusters.Msg.Clusters[0].ImageDigest != list.Msg.Images[0].Digest {
		t.Errorf("the cluster's image is %v, %v", clusters, err)
	}
}

func TestUsersSeeTheirOwnAndKeepToTheirQuota(t *testing.T) {
	r := start(t, t.TempDir())
	ctx := bounded(t)
	r.image("mpi")
	r.host("a1")
	ann, annHTTP := r.user("ann", &v1.Quota{Vcpus: 2})
	bob, _ := r.user("bob", nil)
	_, err := ann.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "big", Spec: spec(3)}))
	wantCode(t, err, connect.CodeResourceExhausted, "quota", "2 vCPUs")
	if _, err := ann.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(2)})); err != nil {
		t.Fatal(err)
	}
	_, err = ann.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md2", Spec: spec(1)}))
	wantCode(t, err, connect.CodeResourceExhausted, "2 in use", "1 more", "watari quota set ann")
	_, err = bob.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(2)}))
	wantCode(t, err, connect.CodeAlreadyExists, "taken")

	_, err = bob.DeleteCluster(ctx, connect.NewRequest(&v1.DeleteClusterRequest{Name: "md"}))
	wantCode(t, err, connect.CodeNotFound)
	_, err = bob.StopGuest(ctx, connect.NewRequest(&v1.StopGuestRequest{Name: "md-0"}))
	wantCode(t, err, connect.CodeNotFound)
	_, err = bob.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0"}))
	wantCode(t, err, connect.CodeNotFound)
	if list, err := bob.ListGuests(ctx, connect.NewRequest(&v1.ListGuestsRequest{})); err != nil || len(list.Msg.Guests) != 0 {
		t.Fatal(list, err)
	}
	if list, err := ann.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{})); err != nil || len(list.Msg.Clusters) != 1 {
		t.Fatal(list, err)
	}
	_, err = ann.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{}))
	wantCode(t, err, connect.CodePermissionDenied)
	_, err = ann.DrainHost(ctx, connect.NewRequest(&v1.DrainHostRequest{Name: "a1"}))
	wantCode(t, err, connect.CodePermissionDenied)
	if me, err := ann.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{})); err != nil || me.Msg.User.Role != v1.Role_ROLE_USER {
		t.Fatal(me, err)
	}
	resp, err := annHTTP.Get(r.url + "/blobs/sha256:" + hexOf("kernel"))
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(resp.Body); string(text) != "kernel" {
		t.Fatalf("%q", text)
	}

	_, err = r.admin.RemoveUser(ctx, connect.NewRequest(&v1.RemoveUserRequest{Name: "ann"}))
	wantCode(t, err, connect.CodeFailedPrecondition, "md")
	for name, users := range map[string][]string{"shared": {"ann", "bob"}, "secret": {"bob"}} {
		storage := &v1.Storage{Meta: &v1.Meta{Name: name}, Server: "nfs.lab", Path: "/" + name, Users: users}
		if _, err := r.admin.AllowStorage(ctx, connect.NewRequest(&v1.AllowStorageRequest{Storage: storage})); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.admin.RemoveUser(ctx, connect.NewRequest(&v1.RemoveUserRequest{Name: "bob"})); err != nil {
		t.Fatal(err)
	}
	// A later user named bob gets none of it, and storage that only bob could mount does not become open to all.
	storages, err := r.admin.ListStorage(ctx, connect.NewRequest(&v1.ListStorageRequest{}))
	if err != nil || len(storages.Msg.Storage) != 1 || !slices.Equal(storages.Msg.Storage[0].Users, []string{"ann"}) {
		t.Errorf("after bob was removed, there is storage %v, %v", storages, err)
	}
	_, err = bob.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated, "removed")

	// The audit trail has the changes, with each user's own part.
	actors := map[string]bool{}
	events, err := r.admin.Events(ctx, connect.NewRequest(&v1.EventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for events.Receive() {
		actors[events.Msg().Event.Actor+" "+events.Msg().Event.Kind] = true
	}
	for _, want := range []string{"ann cluster", "admin user", "ann user", "a1 host"} {
		if !actors[want] {
			t.Errorf("no event of %s; there are %v", want, actors)
		}
	}
	events, err = ann.Events(ctx, connect.NewRequest(&v1.EventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for events.Receive() {
		if e := events.Msg().Event; e.Actor == "bob" || e.Name == "bob" {
			t.Errorf("ann sees %v", e)
		}
	}
}

func TestRestartKeepsEverything(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	ctx := bounded(t)
	pair, _, err := r.join(r.hostToken(), "a1")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "manager", "ca", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	err = Run(ctx, Config{State: filepath.Join(dir, "manager"), Listen: "127.0.0.1:0"})
	if err == nil || !strings.Contains(err.Error(), "another manager (process") {
		t.Fatalf("a second manager on the same state: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, dir)
	if after, err := os.ReadFile(filepath.Join(dir, "manager", "ca", "ca.crt")); err != nil || !bytes.Equal(before, after) {
		t.Fatal("another authority", err)
	}
	r.dial("a1", pair)
	if info, err := os.Stat(filepath.Join(dir, "admin.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info, err)
	}
}

func TestTheOtherManagerTakesOver(t *testing.T) {
	endpoint, ctx := outsideEtcd(t), bounded(t)
	m1 := start(t, t.TempDir(), endpoint)
	pair, _, err := m1.join(m1.hostToken(), "a1")
	if err != nil {
		t.Fatal(err)
	}
	m1.dial("a1", pair)
	m2 := begin(t, t.TempDir(), endpoint)
	// The other manager redirects users and agents to the leader.
	other := watariv1connect.NewControlServiceClient(m1.http, m2.url)
	_, err = other.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
	wantCode(t, err, connect.CodeUnavailable, m1.url)
	if named := new(connect.Error); !errors.As(err, &named) || named.Meta().Get(protocol.LeaderHeader) != m1.url {
		t.Errorf("the leader is not named to programs: %v", err)
	}
	// The administrator's config is on its machine, too.
	m2.await("the other manager writes the administrator's config", func() bool {
		var c clientConfig
		text, err := os.ReadFile(filepath.Join(m2.dir, "admin.json"))
		if err != nil || json.Unmarshal(text, &c) != nil {
			return false
		}
		m2.caPEM = []byte(c.CA)
		admin := watariv1connect.NewControlServiceClient(m2.client(ca.KeyPair{Certificate: []byte(c.Certificate), Key: []byte(c.Key)}), m2.url)
		me, err := admin.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{}))
		return err == nil && me.Msg.User.Meta.Name == "admin"
	})
	if me, err := other.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{})); err != nil || me.Msg.User.Meta.Name != "admin" {
		t.Fatal(me, err)
	}
	config, err := ca.ClientTLS(m1.caPEM, pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	var refusal *hostlink.Refusal
	if err := hostlink.Dial(ctx, m2.url, config, http.NotFoundHandler()); !errors.As(err, &refusal) || refusal.Leader != m1.url {
		t.Fatal(err)
	}
	if err := m1.stop(); err != nil {
		t.Fatal(err)
	}
	m2.awaitLead()
	if !bytes.Equal(m1.caPEM, m2.caPEM) {
		t.Fatal("the managers have different authorities")
	}
	m2.dial("a1", pair)
}

func TestRunIsCreatedOnceAndItsOutputFollowed(t *testing.T) {
	r := start(t, t.TempDir())
	ctx := bounded(t)
	r.image("mpi")
	r.host("a1")
	if _, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(1)})); err != nil {
		t.Fatal(err)
	}
	ask := &v1.CreateRunRequest{Name: "r1", Spec: &v1.RunSpec{Cluster: "md", Command: []string{"hostname"}, Hold: true}}
	made, err := r.admin.CreateRun(ctx, connect.NewRequest(ask))
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.admin.CreateRun(ctx, connect.NewRequest(ask))
	if err != nil || again.Msg.Run.Meta.Uid != made.Msg.Run.Meta.Uid {
		t.Fatal(again, err)
	}
	if cluster, err := r.admin.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{Name: "md"})); err != nil ||
		cluster.Msg.Clusters[0].Meta.Uid != made.Msg.Run.ClusterUid {
		t.Errorf("the run's cluster: %q, %v", made.Msg.Run.ClusterUid, err)
	}
	ask.Spec.Command = []string{"date"}
	_, err = r.admin.CreateRun(ctx, connect.NewRequest(ask))
	wantCode(t, err, connect.CodeAlreadyExists)
	// Without a name, the request's id distinguishes a repeated call from another one.
	uids := map[string]bool{}
	for _, id := range []string{"x", "x", "y", "", ""} {
		unnamed, err := r.admin.CreateRun(ctx, connect.NewRequest(&v1.CreateRunRequest{RequestId: id, Spec: ask.Spec}))
		if err != nil {
			t.Fatal(err)
		}
		uids[unnamed.Msg.Run.Meta.Uid] = true
	}
	if len(uids) != 4 {
		t.Errorf("%d runs of 4 requests", len(uids))
	}
	_, err = r.admin.CreateRun(ctx, connect.NewRequest(&v1.CreateRunRequest{RequestId: "x", Spec: &v1.RunSpec{Cluster: "md", Command: []string{"id"}}}))
	wantCode(t, err, connect.CodeAlreadyExists, "md-run-1")
	_, err = r.admin.CreateRun(ctx, connect.NewRequest(&v1.CreateRunRequest{RequestId: strings.Repeat("x", 65), Spec: ask.Spec}))
	wantCode(t, err, connect.CodeInvalidArgument, "at most 64")
	_, err = r.admin.CreateRun(ctx, connect.NewRequest(&v1.CreateRunRequest{Spec: &v1.RunSpec{Cluster: "no", Command: []string{"date"}}}))
	wantCode(t, err, connect.CodeNotFound, "md")

	output := filepath.Join(r.dir, "manager", "runs", made.Msg.Run.Meta.Uid)
	if err := os.MkdirAll(output, 0o700); err != nil {
		t.Fatal(err)
	}
	stdout, err := os.Create(filepath.Join(output, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	stream, err := r.admin.RunOutput(ctx, connect.NewRequest(&v1.RunOutputRequest{Name: "r1", StdoutOffset: 2, Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, part := range []string{"--one\n", "two\n"} {
		if _, err := stdout.WriteString(part); err != nil {
			t.Fatal(err)
		}
		for !strings.HasSuffix(got, strings.TrimPrefix(part, "--")) && stream.Receive() {
			got += string(stream.Msg().Stdout)
		}
	}
	if got != "one\ntwo\n" {
		t.Fatalf("%q %v", got, stream.Err())
	}
	beyond, err := r.admin.RunOutput(ctx, connect.NewRequest(&v1.RunOutputRequest{Name: "r1", StdoutOffset: 1 << 63, StderrOffset: 1 << 63}))
	if err != nil {
		t.Fatal(err)
	}
	for beyond.Receive() {
	}
	if err := beyond.Err(); err != nil {
		t.Errorf("output beyond any file: %v", err)
	}
	if _, err := r.admin.CancelRun(ctx, connect.NewRequest(&v1.CancelRunRequest{Name: "r1"})); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() && stream.Msg().Ended == nil {
	}
	if stream.Err() != nil || stream.Msg().Ended.GetState() != v1.RunState_RUN_STATE_CANCELLED {
		t.Fatal(stream.Err(), stream.Msg())
	}

	// Another manager led when this run ran, or the state was restored from a copy without it.
	elsewhere := &v1.Run{Meta: &v1.Meta{Name: "elsewhere"}, Spec: ask.Spec, State: v1.RunState_RUN_STATE_EXITED, ExitCode: 3, Started: timestamppb.Now(), Ended: timestamppb.Now()}
	if err := r.deps.Load().Store.Txn(ctx, store.Create(elsewhere)); err != nil {
		t.Fatal(err)
	}
	lost, err := r.admin.RunOutput(ctx, connect.NewRequest(&v1.RunOutputRequest{Name: "elsewhere"}))
	if err != nil {
		t.Fatal(err)
	}
	for lost.Receive() {
	}
	wantCode(t, lost.Err(), connect.CodeNotFound, "the output of run elsewhere is not here", "the run is exited, with status 3")
}

// moving makes a cluster of one guest and three hosts that never begin a transfer.
func moving(t *testing.T) *running {
	t.Helper()
	r := start(t, t.TempDir())
	r.image("mpi")
	for _, name := range []string{"a1", "a2", "a3"} {
		r.host(name)
	}
	if _, err := r.admin.CreateCluster(bounded(t), connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(1)})); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest("md-0", "")
	return r
}

// awaitGuest waits until a guest is ready, on another host than the given one, and returns its host.
func (r *running) awaitGuest(name, otherThan string) (host string) {
	r.t.Helper()
	r.await(name+" is ready", func() bool {
		list, err := r.admin.ListGuests(r.t.Context(), connect.NewRequest(&v1.ListGuestsRequest{Name: name}))
		if err != nil {
			return false
		}
		host = list.Msg.Guests[0].Host
		return list.Msg.Guests[0].Ready && host != otherThan
	})
	return host
}

func TestMovesAreAskedForOnce(t *testing.T) {
	r, ctx := moving(t), bounded(t)
	first, err := r.admin.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0"}))
	if err != nil || len(first.Msg.Explanation) != 3 {
		t.Fatal(first, err)
	}
	m := first.Msg.Migration
	again, err := r.admin.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0", ToHost: m.Target}))
	if err != nil || again.Msg.Migration.Meta.Name != m.Meta.Name {
		t.Fatal(again, err)
	}
	_, err = r.admin.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0", ToHost: m.Source}))
	wantCode(t, err, connect.CodeFailedPrecondition, m.Meta.Name, m.Target)
	_, err = r.admin.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0", ToHost: "a1", ToSite: "a"}))
	wantCode(t, err, connect.CodeInvalidArgument)
	_, err = r.admin.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0", ToSite: "mars"}))
	wantCode(t, err, connect.CodeNotFound, "there are: a")
	if _, err := r.admin.CancelMigration(ctx, connect.NewRequest(&v1.CancelMigrationRequest{Name: "md-0"})); err != nil {
		t.Fatal(err)
	}
	r.await("the move is cancelled", func() bool {
		list, err := r.admin.ListMigrations(ctx, connect.NewRequest(&v1.ListMigrationsRequest{Name: m.Meta.Name}))
		return err == nil && list.Msg.Migrations[0].State == v1.MigrationState_MIGRATION_STATE_CANCELLED
	})
	_, err = r.admin.CancelMigration(ctx, connect.NewRequest(&v1.CancelMigrationRequest{Name: "md-0"}))
	wantCode(t, err, connect.CodeFailedPrecondition, "not moving")
	_, err = r.admin.CancelMigration(ctx, connect.NewRequest(&v1.CancelMigrationRequest{Name: m.Meta.Name}))
	wantCode(t, err, connect.CodeFailedPrecondition, "cancelled")
	next, err := r.admin.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0"}))
	if err != nil || next.Msg.Migration.Meta.Name == m.Meta.Name {
		t.Fatal(next, err)
	}
}

func TestGuestsOfALostHostAreStartedElsewhere(t *testing.T) {
	r, ctx := moving(t), bounded(t)
	lost := r.awaitGuest("md-0", "")
	r.ends[lost]()
	r.await(lost+" is away", func() bool {
		list, err := r.admin.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{Name: lost}))
		return err == nil && list.Msg.Hosts[0].State == v1.HostState_HOST_STATE_UNREACHABLE
	})
	if status, err := r.admin.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{})); err != nil || !strings.Contains(strings.Join(status.Msg.Problems, "\n"), "host "+lost+" is not reachable") {
		t.Fatal(status, err)
	}
	_, err := r.admin.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: lost}))
	wantCode(t, err, connect.CodeFailedPrecondition, "md-0", "--lost")
	if _, err := r.admin.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: lost, Lost: true})); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest("md-0", lost)
	r.await(lost+" is forgotten", func() bool {
		_, err := r.admin.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{Name: lost}))
		return connect.CodeOf(err) == connect.CodeNotFound
	})
}

// A host that was removed as lost but was only disconnected learns of the removal when it reconnects: its guests run
// elsewhere by now. A host that the store does not know, perhaps because an older copy was restored, learns only that.
func TestARemovedHostIsToldToEndItsGuestsAndAnUnknownOneIsNot(t *testing.T) {
	r, ctx, older := start(t, t.TempDir()), bounded(t), t.TempDir()
	if err := errors.Join(r.stop(), os.CopyFS(older, os.DirFS(r.dir))); err != nil {
		t.Fatal(err)
	}
	r = start(t, r.dir)
	join := func() ca.KeyPair {
		t.Helper()
		pair, _, err := r.join(r.hostToken(), "a1")
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	pair := join()
	refusal := func(pair ca.KeyPair) *hostlink.Refusal {
		t.Helper()
		config, err := ca.ClientTLS(r.caPEM, pair.Certificate, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		var refused *hostlink.Refusal
		if err := hostlink.Dial(ctx, r.url, config, http.NotFoundHandler()); !errors.As(err, &refused) {
			t.Fatalf("not refused: %v", err)
		}
		return refused
	}
	if _, err := r.admin.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: "a1", Lost: true})); err != nil {
		t.Fatal(err)
	}
	if told := refusal(pair); !told.Removed || !strings.Contains(told.Reason, "was removed") {
		t.Errorf("the removed host was told %+v", told)
	}
	// Another host has its name now.
	join()
	if told := refusal(pair); !told.Removed {
		t.Errorf("the removed host was told %+v", told)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = start(t, older)
	if told := refusal(pair); told.Removed || !strings.Contains(told.Reason, "not known") {
		t.Errorf("the unknown host was told %+v", told)
	}
}

func TestAFollowedConsoleGoesOnWhereTheGuestIs(t *testing.T) {
	r, ctx := moving(t), bounded(t)
	stream, err := r.admin.GuestConsole(ctx, connect.NewRequest(&v1.GuestConsoleRequest{Name: "md-0", Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || string(stream.Msg().Data) != "one " {
		t.Fatal(stream.Msg(), stream.Err())
	}
	lost := r.awaitGuest("md-0", "")
	r.ends[lost]()
	r.await(lost+" is removed", func() bool {
		_, err := r.admin.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: lost, Lost: true}))
		return err == nil
	})
	if !stream.Receive() || string(stream.Msg().Data) != "two" || stream.Msg().Offset != 4 {
		t.Fatal(stream.Msg(), stream.Err())
	}
}

func TestGuestsAreStoppedAndStarted(t *testing.T) {
	r, ctx := moving(t), bounded(t)
	if _, err := r.admin.StopGuest(ctx, connect.NewRequest(&v1.StopGuestRequest{Name: "md-0"})); err != nil {
		t.Fatal(err)
	}
	r.await("md-0 is stopped", func() bool {
		list, err := r.admin.ListGuests(ctx, connect.NewRequest(&v1.ListGuestsRequest{Cluster: "md"}))
		return err == nil && list.Msg.Guests[0].State == v1.GuestState_GUEST_STATE_STOPPED
	})
	_, err := r.admin.Migrate(ctx, connect.NewRequest(&v1.MigrateRequest{Guest: "md-0"}))
	wantCode(t, err, connect.CodeFailedPrecondition, "stopped")
	if _, err := r.admin.StartGuest(ctx, connect.NewRequest(&v1.StartGuestRequest{Name: "md-0"})); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest("md-0", "")
}

func TestARunIsRefusedWhileAGuestIsStopped(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	r.host("a1")
	if _, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(2)})); err != nil {
		t.Fatal(err)
	}
	ask := func(name string) error {
		_, err := r.admin.CreateRun(ctx, connect.NewRequest(&v1.CreateRunRequest{Name: name,
			Spec: &v1.RunSpec{Cluster: "md", Command: []string{"hostname"}, Ranks: 1, Hold: true}}))
		return err
	}
	if err := ask("held"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.StopGuest(ctx, connect.NewRequest(&v1.StopGuestRequest{Name: "md-1"})); err != nil {
		t.Fatal(err)
	}
	wantCode(t, ask("another"), connect.CodeFailedPrecondition, "guest md-1 is stopped", "watari guest start md-1")
	_, err := r.admin.StartRun(ctx, connect.NewRequest(&v1.StartRunRequest{Name: "held"}))
	wantCode(t, err, connect.CodeFailedPrecondition, "watari guest start md-1")
	if err := ask("held"); err != nil {
		t.Errorf("the same run, asked for again: %v", err)
	}
	if _, err := r.admin.StartGuest(ctx, connect.NewRequest(&v1.StartGuestRequest{Name: "md-1"})); err != nil {
		t.Fatal(err)
	}
	if err := ask("another"); err != nil {
		t.Errorf("while the guest starts: %v", err)
	}
}

func TestAStreamEndsWhenItsCallerIsRemoved(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	ann, _ := r.user("ann", nil)
	events, err := ann.Events(ctx, connect.NewRequest(&v1.EventsRequest{Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	if !events.Receive() {
		t.Fatal(events.Err())
	}
	if _, err := r.admin.RemoveUser(ctx, connect.NewRequest(&v1.RemoveUserRequest{Name: "ann"})); err != nil {
		t.Fatal(err)
	}
	for events.Receive() {
	}
	wantCode(t, events.Err(), connect.CodeUnauthenticated, "ann was removed")
}

// audited returns the entries of the audit log: caller, call, object, and the code of a refusal.
func (r *running) audited() (seen []string) {
	r.t.Helper()
	entries, err := r.admin.Audit(r.t.Context(), connect.NewRequest(&v1.AuditRequest{}))
	if err != nil {
		r.t.Fatal(err)
	}
	for entries.Receive() {
		e := entries.Msg().Entry
		if !strings.HasPrefix(e.Address, "127.0.0.1") || strings.Contains(e.Object, "\x1b") {
			r.t.Errorf("an entry: %v", e)
		}
		seen = append(seen, strings.TrimSpace(e.Caller+" "+e.Call+" "+e.Object+" "+e.Code))
	}
	return seen
}

// The audit log records who changed and read what, and who was refused, but not reads of lists.
func TestTheAuditLogHasRefusedCallsAndReads(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	r.host("a1")
	ann, annHTTP := r.user("ann", nil)
	bob, _ := r.user("bob", nil)
	if _, err := ann.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(1)})); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 3*time.Second) // the guest cannot be reached
	defer cancel()
	if file, err := ann.GetFile(short, connect.NewRequest(&v1.ControlGetFileRequest{Guest: "md-0", Path: "/etc/passwd"})); err == nil {
		file.Receive()
		file.Close()
	}
	if resp, err := annHTTP.Get(r.url + "/blobs/sha256:" + hexOf("kernel")); err != nil || resp.Body.Close() != nil {
		t.Fatal(err)
	}
	pair, _, err := r.join(r.hostToken(), "a2")
	if err != nil {
		t.Fatal(err)
	}
	_, err = watariv1connect.NewControlServiceClient(r.client(pair), r.url).ListUsers(ctx, connect.NewRequest(&v1.ListUsersRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated)
	if _, err := ann.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{})); err != nil {
		t.Fatal(err)
	}
	_, err = ann.DrainHost(ctx, connect.NewRequest(&v1.DrainHostRequest{Name: "a1"}))
	wantCode(t, err, connect.CodePermissionDenied)
	_, err = ann.DeleteCluster(ctx, connect.NewRequest(&v1.DeleteClusterRequest{Name: "other\x1b[2J"}))
	wantCode(t, err, connect.CodeNotFound)
	_, err = bob.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{Name: "md"})) // as if there were no such cluster
	wantCode(t, err, connect.CodeNotFound)
	_, err = bob.ResizeCluster(ctx, connect.NewRequest(&v1.ResizeClusterRequest{Name: "md", Guests: 2}))
	wantCode(t, err, connect.CodeNotFound)
	console, err := ann.GuestConsole(ctx, connect.NewRequest(&v1.GuestConsoleRequest{Name: "md-0"}))
	if err != nil {
		t.Fatal(err)
	}
	console.Receive()
	console.Close()
	noCert := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.JoinTLS(mustToken(t, r.hostToken()))}}
	stranger := watariv1connect.NewControlServiceClient(noCert, r.url)
	_, err = stranger.ListUsers(ctx, connect.NewRequest(&v1.ListUsersRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated)
	// The manager reads only a little of a stranger's request before it refuses the request.
	for size, code := range map[int]connect.Code{4 << 10: connect.CodeUnauthenticated, 4<<10 + 1: connect.CodeResourceExhausted, 5 << 10: connect.CodeResourceExhausted} {
		request := &v1.DeleteClusterRequest{Name: strings.Repeat("x", size-3)}
		if n := proto.Size(request); n != size {
			t.Fatalf("the request has %d bytes, not %d", n, size)
		}
		_, err = stranger.DeleteCluster(ctx, connect.NewRequest(request))
		wantCode(t, err, code)
	}
	output, err := ann.RunOutput(ctx, connect.NewRequest(&v1.RunOutputRequest{Name: "nothing"}))
	if err != nil {
		t.Fatal(err)
	}
	output.Receive()
	output.Close()
	if status, text := r.put(noCert, "kernel", "6"); status != http.StatusUnauthorized {
		t.Errorf("a stranger's upload: %d, %s", status, text)
	}
	_, key := r.link(r.admin)
	for _, key := range []string{key, key} { // the second time, it has been used
		r.browser().logIn(key)
	}

	seen := r.audited()
	for _, want := range []string{"user admin CreateImage mpi", "Join a1", "user admin AddUser ann", "Join ann", "user ann CreateCluster md",
		"user ann DrainHost a1 permission_denied", "user ann GuestConsole md-0", "user ann RunOutput nothing", "ListUsers  unauthenticated",
		"user ann GetFile md-0", "user ann GetBlob sha256:" + hexOf("kernel"), "host a2 ListUsers  unauthenticated", "host a1 Session a1",
		"PutBlob sha256:" + hexOf("kernel") + " unauthenticated", "user admin LogIn web console", "LogIn web console unauthenticated",
		`user ann DeleteCluster other\x1b[2J not_found`, "user bob ResizeCluster md not_found"} {
		if !slices.Contains(seen, want) {
			t.Errorf("not in the log: %q", want)
		}
	}
	absent := func(s string) bool {
		return strings.Contains(s, "ListClusters") || strings.Contains(s, "resource_exhausted")
	}
	if slices.ContainsFunc(seen, absent) || t.Failed() {
		t.Errorf("in the log: %q", seen)
	}
	refused, err := ann.Audit(ctx, connect.NewRequest(&v1.AuditRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	refused.Receive()
	wantCode(t, refused.Err(), connect.CodePermissionDenied, "administrator")
	// The entries of a removed user stay.
	if _, err := r.admin.RemoveUser(ctx, connect.NewRequest(&v1.RemoveUserRequest{Name: "bob"})); err != nil {
		t.Fatal(err)
	}
	if now := r.audited(); len(now) < len(seen) || !slices.Equal(now[:len(seen)], seen) {
		t.Errorf("the log was %q and is %q", seen, now)
	}
}
