package manager

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"watari/ca"
	"watari/manager/session"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
)

// running is a manager of a test.
type running struct {
	t     *testing.T
	url   string
	dir   string
	stop  func() error
	admin watariv1connect.ControlServiceClient
	http  *http.Client // with the administrator's certificate
	caPEM []byte
	guest *fakeGuest                    // what hosts serve as any guest; may be nil
	cuts  map[string]context.CancelFunc // ends a host's present connection
	mu    sync.Mutex
}

// bounded is a context for a whole test.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// start starts a manager in a folder and waits until it leads.
func start(t *testing.T, dir string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			State: filepath.Join(dir, "manager"), Listen: "127.0.0.1:0", Ready: func(a net.Addr) { ready <- a },
		})
	}()
	r := &running{t: t, dir: dir, cuts: map[string]context.CancelFunc{}}
	select {
	case a := <-ready:
		r.url = "https://" + a.String()
	case err := <-ended:
		t.Fatal(err)
	}
	stopped := false
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() { r.stop() })
	r.await("the manager leads", func() bool {
		var c clientConfig
		text, err := os.ReadFile(filepath.Join(dir, "admin.json"))
		if err != nil || json.Unmarshal(text, &c) != nil || c.Managers[0] != r.url {
			return false
		}
		r.caPEM = []byte(c.CA)
		r.http = r.client(ca.KeyPair{Certificate: []byte(c.Certificate), Key: []byte(c.Key)})
		r.admin = watariv1connect.NewControlServiceClient(r.http, r.url)
		_, err = r.admin.GetStatus(context.Background(), connect.NewRequest(&v1.GetStatusRequest{}))
		return err == nil
	})
	return r
}

func (r *running) client(pair ca.KeyPair) *http.Client {
	r.t.Helper()
	config, err := ca.ClientTLS(r.caPEM, pair.Certificate, pair.Key)
	if err != nil {
		r.t.Fatal(err)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
}

func (r *running) await(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			r.t.Fatalf("timed out: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// join trades a token for a certificate.
func (r *running) join(token, name string) (ca.KeyPair, *v1.JoinResponse, error) {
	r.t.Helper()
	parsed, err := ca.ParseToken(token)
	if err != nil {
		r.t.Fatal(err)
	}
	key, request, err := ca.NewKeyAndCSR()
	if err != nil {
		r.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.JoinTLS(parsed)}}
	resp, err := watariv1connect.NewJoinServiceClient(client, r.url).Join(context.Background(),
		connect.NewRequest(&v1.JoinRequest{Token: token, Name: name, Request: request}))
	if err != nil {
		return ca.KeyPair{}, nil, err
	}
	return ca.KeyPair{Certificate: resp.Msg.Certificate, Key: key}, resp.Msg, nil
}

// hostToken makes a token for a host.
func (r *running) hostToken() string {
	r.t.Helper()
	resp, err := r.admin.CreateToken(context.Background(), connect.NewRequest(&v1.CreateTokenRequest{Site: "a"}))
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.Msg.Token
}

// user adds a user and logs them in.
func (r *running) user(name string, quota *v1.Quota) (watariv1connect.ControlServiceClient, *http.Client) {
	r.t.Helper()
	added, err := r.admin.AddUser(context.Background(), connect.NewRequest(&v1.AddUserRequest{Name: name, Quota: quota}))
	if err != nil {
		r.t.Fatal(err)
	}
	pair, _, err := r.join(added.Msg.Token, "")
	if err != nil {
		r.t.Fatal(err)
	}
	client := r.client(pair)
	return watariv1connect.NewControlServiceClient(client, r.url), client
}

// fakeHost is an agent that starts whatever it is told to, at once.
type fakeHost struct {
	watariv1connect.UnimplementedAgentServiceHandler
	info *v1.HostInfo
}

func (f *fakeHost) Sync(_ context.Context, stream *connect.BidiStream[v1.HostWanted, v1.HostObserved]) error {
	report := &v1.HostObserved{Info: f.info, Load: &v1.HostLoad{}}
	for {
		if err := stream.Send(report); err != nil {
			return err
		}
		w, err := stream.Receive()
		if err != nil {
			return err
		}
		report = &v1.HostObserved{Info: f.info, Load: &v1.HostLoad{}, Term: w.Term, Generation: w.Generation, NetworkGeneration: w.GetNetwork().GetGeneration()}
		for _, g := range w.Guests {
			if g.Role == v1.GuestRole_GUEST_ROLE_RUN {
				report.Guests = append(report.Guests, &v1.GuestObserved{Uid: g.Uid, Name: g.Name, Epoch: g.Epoch,
					Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING, Ready: true})
			}
		}
	}
}

// host joins a fake host and waits until it is ready.
func (r *running) host(name string) (drop context.CancelFunc) {
	r.t.Helper()
	pair, joined, err := r.join(r.hostToken(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	if joined.Name != name || joined.Site != "a" || !bytes.Equal(joined.CaCertificate, r.caPEM) {
		r.t.Fatalf("joined as %v", joined)
	}
	return r.dial(name, pair)
}

func (r *running) dial(name string, pair ca.KeyPair) (drop context.CancelFunc) {
	r.t.Helper()
	config, err := ca.ClientTLS(r.caPEM, pair.Certificate, pair.Key)
	if err != nil {
		r.t.Fatal(err)
	}
	f := &fakeHost{info: &v1.HostInfo{BootId: "boot-" + name, Site: "a", Cores: 4, MemoryBytes: 4 << 30, LanAddress: "192.0.2.1", TunnelPort: 7071}}
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewAgentServiceHandler(f))
	if r.guest != nil {
		mux.Handle("/guest/", r.guest.handler())
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			one, cut := context.WithCancel(ctx)
			r.mu.Lock()
			r.cuts[name] = cut
			r.mu.Unlock()
			session.DialAgent(one, r.url, config, mux)
			cut()
		}
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	r.await(name+" is ready", func() bool {
		resp, err := r.admin.ListHosts(context.Background(), connect.NewRequest(&v1.ListHostsRequest{Name: name}))
		return err == nil && resp.Msg.Hosts[0].State == v1.HostState_HOST_STATE_READY && resp.Msg.Hosts[0].GetInfo() != nil
	})
	return cancel
}

// drop cuts a host's connection, which it makes anew.
func (r *running) drop(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cuts[name]()
}

// image puts and registers an image of made-up content.
func (r *running) image(name string) {
	r.t.Helper()
	image := &v1.Image{Meta: &v1.Meta{Name: name}, RootType: "squashfs", Source: "a test", Mpi: []string{"openmpi"}}
	for _, part := range []struct {
		blob **v1.Blob
		text string
	}{{&image.Kernel, "kernel"}, {&image.Initrd, "initrd"}, {&image.Root, "root"}} {
		sum := sha256.Sum256([]byte(part.text))
		*part.blob = &v1.Blob{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: uint64(len(part.text))}
	}
	resp, err := r.admin.CreateImage(context.Background(), connect.NewRequest(&v1.CreateImageRequest{Image: image}))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, b := range resp.Msg.Missing {
		for _, text := range []string{"kernel", "initrd", "root"} {
			if sum := sha256.Sum256([]byte(text)); b.Digest == "sha256:"+hex.EncodeToString(sum[:]) {
				if status := put(r.t, r.http, r.url+"/blobs/"+b.Digest, text); status != http.StatusCreated {
					r.t.Fatal(status)
				}
			}
		}
	}
	resp, err = r.admin.CreateImage(context.Background(), connect.NewRequest(&v1.CreateImageRequest{Image: image}))
	if err != nil || len(resp.Msg.Missing) > 0 || resp.Msg.Image.GetDigest() == "" {
		r.t.Fatal(resp, err)
	}
}

func put(t *testing.T, client *http.Client, url, text string) int {
	t.Helper()
	q, err := http.NewRequest(http.MethodPut, url, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Watari-Size", fmt.Sprint(len(text)))
	resp, err := client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func spec(guests uint32) *v1.ClusterSpec {
	return &v1.ClusterSpec{Guests: guests, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 256 << 20}, Image: "mpi"}
}

func wantCode(t *testing.T, err error, code connect.Code, texts ...string) {
	t.Helper()
	if connect.CodeOf(err) != code {
		t.Fatalf("got %v, want %v", err, code)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Fatalf("%q does not say %q", err, text)
		}
	}
}

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
	if _, _, err := r.join(token, "a1"); err != nil {
		t.Fatal(err)
	}
	_, _, err = r.join(token, "a2")
	wantCode(t, err, connect.CodePermissionDenied, "used already")
	_, _, err = r.join(r.hostToken(), "a1")
	wantCode(t, err, connect.CodeAlreadyExists, "remove it first")
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
	var refusal *session.Refusal
	if err := session.DialAgent(ctx, r.url, config, http.NotFoundHandler()); !errors.As(err, &refusal) || !strings.Contains(refusal.Reason, "removed") {
		t.Fatal(err)
	}
	// A later host of the same name does not make the old certificate good.
	if _, _, err := r.join(r.hostToken(), "a1"); err != nil {
		t.Fatal(err)
	}
	if err := session.DialAgent(ctx, r.url, config, http.NotFoundHandler()); !errors.As(err, &refusal) {
		t.Fatal(err)
	}
}

func mustToken(t *testing.T, text string) ca.Token {
	t.Helper()
	token, err := ca.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
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
	wantCode(t, err, connect.CodeResourceExhausted, "2 are in use")
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
	if _, err := r.admin.RemoveUser(ctx, connect.NewRequest(&v1.RemoveUserRequest{Name: "bob"})); err != nil {
		t.Fatal(err)
	}
	_, err = bob.WhoAmI(ctx, connect.NewRequest(&v1.WhoAmIRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated, "removed")

	// The changes are in the audit trail, each user's own part for each.
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

func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
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
	ask.Spec.Command = []string{"date"}
	_, err = r.admin.CreateRun(ctx, connect.NewRequest(ask))
	wantCode(t, err, connect.CodeAlreadyExists)
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
	if _, err := r.admin.CancelRun(ctx, connect.NewRequest(&v1.CancelRunRequest{Name: "r1"})); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() && stream.Msg().Ended == nil {
	}
	if stream.Err() != nil || stream.Msg().Ended.GetState() != v1.RunState_RUN_STATE_CANCELLED {
		t.Fatal(stream.Err(), stream.Msg())
	}
}
