package manager

// harness_test.go - a whole manager on loopback, and hosts and users that call it.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"watari/ca"
	"watari/hostlink"
	"watari/manager/controller"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/protobuf/types/known/timestamppb"
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
	guest *fakeGuest                    // serves as every guest of the hosts; may be nil
	cuts  map[string]context.CancelFunc // ends a host's present connection
	ends  map[string]context.CancelFunc // ends a host for good
	mu    sync.Mutex

	deps     atomic.Pointer[controller.Deps] // the controller's latest dependencies
	consoles atomic.Int32
	problems []string // problems of hosts that connect from now on
	busy     bool     // owners use the hosts that connect from now on
	boot     string   // part of their boot ids
}

// bounded is a context for a whole test.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// start starts a manager in a folder and waits until it leads.
func start(t *testing.T, dir string, endpoints ...string) *running {
	t.Helper()
	r := begin(t, dir, endpoints...)
	r.awaitLead()
	return r
}

// begin starts a manager in a folder.
func begin(t *testing.T, dir string, endpoints ...string) *running {
	t.Helper()
	return beginWith(t, dir, func(c *Config) { c.EtcdEndpoints = endpoints })
}

// beginWith starts a manager in a folder with other settings.
func beginWith(t *testing.T, dir string, change func(*Config)) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan net.Addr, 1), make(chan error, 1)
	r := &running{t: t, dir: dir, cuts: map[string]context.CancelFunc{}, ends: map[string]context.CancelFunc{}}
	go func() {
		config := Config{
			State: filepath.Join(dir, "manager"), Listen: "127.0.0.1:0", Ready: func(a net.Addr) { ready <- a },
			RunController: func(ctx context.Context, d controller.Deps) error {
				r.deps.Store(&d)
				return controller.Run(ctx, d)
			},
		}
		change(&config)
		ended <- Run(ctx, config)
	}()
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
	return r
}

func (r *running) awaitLead() {
	r.t.Helper()
	r.await("the manager leads", func() bool {
		var c clientConfig
		text, err := os.ReadFile(filepath.Join(r.dir, "admin.json"))
		if err != nil || json.Unmarshal(text, &c) != nil || c.Managers[0] != r.url {
			return false
		}
		r.caPEM = []byte(c.CA)
		r.http = r.client(ca.KeyPair{Certificate: []byte(c.Certificate), Key: []byte(c.Key)})
		r.admin = watariv1connect.NewControlServiceClient(r.http, r.url)
		_, err = r.admin.GetStatus(context.Background(), connect.NewRequest(&v1.GetStatusRequest{}))
		return err == nil
	})
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
	key, request, err := ca.NewKeyAndCSR()
	if err != nil {
		r.t.Fatal(err)
	}
	return r.joinWith(token, name, key, request)
}

func (r *running) joinWith(token, name string, key, request []byte) (ca.KeyPair, *v1.JoinResponse, error) {
	r.t.Helper()
	parsed, err := ca.ParseToken(token)
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
	return r.added(&v1.AddUserRequest{Name: name, Quota: quota})
}

// administrator adds another administrator.
func (r *running) administrator(name string) watariv1connect.ControlServiceClient {
	r.t.Helper()
	client, _ := r.added(&v1.AddUserRequest{Name: name, Role: v1.Role_ROLE_ADMIN})
	return client
}

func (r *running) added(request *v1.AddUserRequest) (watariv1connect.ControlServiceClient, *http.Client) {
	r.t.Helper()
	added, err := r.admin.AddUser(context.Background(), connect.NewRequest(request))
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

// fakeHost is an agent that starts every ordered guest at once, and makes and restores every ordered checkpoint.
type fakeHost struct {
	watariv1connect.UnimplementedAgentServiceHandler
	info     *v1.HostInfo
	problems []string      // reported problems
	busy     bool          // its owner uses it
	consoles *atomic.Int32 // read so far, of all hosts
}

// Samples says each second what is in use, if the host's owner uses it.
func (f *fakeHost) Samples(ctx context.Context, _ *connect.Request[v1.SamplesRequest], out *connect.ServerStream[v1.HostSample]) error {
	for f.busy {
		if err := out.Send(&v1.HostSample{At: timestamppb.Now(), Seconds: 1, CpuOwner: 2, MemoryAvailableBytes: 3 << 30}); err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return connect.NewError(connect.CodeUnimplemented, errors.New("nothing is measured here"))
}

// checkpointed is what a host reports at once when it is ordered to save a guest.
func checkpointed(w *v1.CheckpointWanted) *v1.CheckpointObserved {
	o := &v1.CheckpointObserved{CheckpointId: w.CheckpointId, GuestUid: w.GuestUid, Epoch: w.Epoch}
	switch w.Order {
	case v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE:
		o.Phase = v1.CheckpointPhase_CHECKPOINT_PHASE_READY
	case v1.CheckpointOrder_CHECKPOINT_ORDER_STOP:
		o.Phase = v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED
	case v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE, v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP:
		o.Phase = v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN
		o.File = &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:" + hexOf(w.CheckpointId+w.GuestUid), Size: 1 << 20}, StateBytes: 1 << 20}
	default:
		return nil
	}
	return o
}

// Console makes a guest write "one " on the first host that is asked, and "two" on another, which has nothing at first.
func (f *fakeHost) Console(ctx context.Context, _ *connect.Request[v1.ConsoleRequest], out *connect.ServerStream[v1.ConsoleResponse]) error {
	switch f.consoles.Add(1) {
	case 1:
		if err := out.Send(&v1.ConsoleResponse{Data: []byte("one ")}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	case 2:
		return connect.NewError(connect.CodeNotFound, errors.New("no console here"))
	}
	return out.Send(&v1.ConsoleResponse{Data: []byte("two")})
}

func (f *fakeHost) Sync(_ context.Context, stream *connect.BidiStream[v1.HostWanted, v1.HostObserved]) error {
	report := &v1.HostObserved{Info: f.info, Load: &v1.HostLoad{}, Problems: f.problems}
	for {
		if err := stream.Send(report); err != nil {
			return err
		}
		w, err := stream.Receive()
		if err != nil {
			return err
		}
		report = &v1.HostObserved{Info: f.info, Load: &v1.HostLoad{}, Term: w.Term, Generation: w.Generation, NetworkGeneration: w.GetNetwork().GetGeneration(), Problems: f.problems}
		for _, g := range w.Guests {
			switch {
			case g.Role == v1.GuestRole_GUEST_ROLE_RUN:
				report.Guests = append(report.Guests, &v1.GuestObserved{Uid: g.Uid, Name: g.Name, Epoch: g.Epoch,
					Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING, Ready: true})
			case g.Restore != nil:
				report.Guests = append(report.Guests, &v1.GuestObserved{Uid: g.Uid, Name: g.Name, Epoch: g.Epoch,
					Condition: v1.GuestCondition_GUEST_CONDITION_RECEIVED})
			}
		}
		for _, c := range w.Checkpoints {
			if o := checkpointed(c); o != nil {
				report.Checkpoints = append(report.Checkpoints, o)
			}
		}
	}
}

// host joins a fake host and waits until it is ready.
func (r *running) host(name string) {
	r.t.Helper()
	pair, joined, err := r.join(r.hostToken(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	if joined.Name != name || joined.Site != "a" || !bytes.Equal(joined.CaCertificate, r.caPEM) {
		r.t.Fatalf("joined as %v", joined)
	}
	r.dial(name, pair)
}

// dial connects a fake host, repeatedly, until the test ends.
func (r *running) dial(name string, pair ca.KeyPair) {
	r.t.Helper()
	config, err := ca.ClientTLS(r.caPEM, pair.Certificate, pair.Key)
	if err != nil {
		r.t.Fatal(err)
	}
	f := &fakeHost{consoles: &r.consoles, problems: r.problems, busy: r.busy, info: &v1.HostInfo{BootId: "boot-" + r.boot + name, Site: "a", Cores: 4, MemoryBytes: 4 << 30, LanAddress: "192.0.2.1", TunnelPort: 7071}}
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
			hostlink.Dial(one, r.url, config, mux)
			cut()
		}
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	r.await(name+" is ready", func() bool {
		resp, err := r.admin.ListHosts(context.Background(), connect.NewRequest(&v1.ListHostsRequest{Name: name}))
		return err == nil && resp.Msg.Hosts[0].State == v1.HostState_HOST_STATE_READY && resp.Msg.Hosts[0].GetInfo() != nil
	})
	r.ends[name] = cancel
}

// drop cuts a host's connection; the host reconnects.
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
	resp, err := r.admin.CreateImage(context.Background(), connect.NewRequest(&v1.CreateImageRequest{Image: image, Publish: true}))
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
	resp, err = r.admin.CreateImage(context.Background(), connect.NewRequest(&v1.CreateImageRequest{Image: image, Publish: true}))
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

func mustToken(t *testing.T, text string) ca.Token {
	t.Helper()
	token, err := ca.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// outsideEtcd starts an etcd on a Unix socket.
func outsideEtcd(t *testing.T) (endpoint string) {
	t.Helper()
	dir := t.TempDir()
	socket := url.URL{Scheme: "unix", Path: filepath.Join(dir, "etcd.sock")}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.LogOutputs = filepath.Join(dir, "data"), "error", []string{filepath.Join(dir, "log")}
	cfg.ListenPeerUrls, cfg.ListenClientUrls, cfg.AdvertiseClientUrls = nil, []url.URL{socket}, []url.URL{socket}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	<-server.Server.ReadyNotify()
	return socket.String()
}
