package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/guest/agent"
)

func newAgent(t *testing.T) *agent.Agent {
	a, err := agent.New(t.TempDir(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// host returns a host's clients of an agent.
func host(t *testing.T, a *agent.Agent) (watariv1connect.GuestServiceClient, watariv1connect.ProcessServiceClient) {
	server := httptest.NewUnstartedServer(a.HostHandler())
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return watariv1connect.NewGuestServiceClient(server.Client(), server.URL), watariv1connect.NewProcessServiceClient(server.Client(), server.URL)
}

func put(t *testing.T, guests watariv1connect.GuestServiceClient, messages ...*v1.PutFileRequest) (uint64, error) {
	stream := guests.PutFile(t.Context())
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			break
		}
	}
	r, err := stream.CloseAndReceive()
	if err != nil {
		return 0, err
	}
	return r.Msg.GetSize(), nil
}

// Who reads on after a lost connection must not get the rest of another file.
func TestTheRestOfAReplacedFileIsNotRead(t *testing.T) {
	guests, _ := host(t, newAgent(t))
	path := filepath.Join(t.TempDir(), "file")
	replace := func(text string) {
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	read := func(offset uint64, version string) (string, string, error) {
		stream, err := guests.GetFile(t.Context(), connect.NewRequest(&v1.GetFileRequest{Path: path, Offset: offset, Version: version}))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		text, seen := "", ""
		for stream.Receive() {
			text, seen = text+string(stream.Msg().Data), seen+stream.Msg().Version
		}
		return text, seen, stream.Err()
	}
	replace("old text")
	_, version, err := read(0, "")
	if err != nil || version == "" {
		t.Fatal(version, err)
	}
	if rest, _, err := read(4, version); err != nil || rest != "text" {
		t.Errorf("%q, %v", rest, err)
	}
	replace("new file")
	if rest, _, err := read(4, version); connect.CodeOf(err) != connect.CodeAborted || rest != "" {
		t.Errorf("%q, %v", rest, err)
	}
	if rest, _, err := read(4, ""); err != nil || rest != "file" { // an older client
		t.Errorf("%q, %v", rest, err)
	}
}

func TestTwoUploadsToOneFileDoNotMix(t *testing.T) {
	guests, _ := host(t, newAgent(t))
	path := filepath.Join(t.TempDir(), "file")
	first := guests.PutFile(t.Context())
	if err := first.Send(&v1.PutFileRequest{Path: path, Data: []byte("first ")}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), ".file.watari-part")); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if _, err := put(t, guests, &v1.PutFileRequest{Path: path, Data: []byte("second"), Last: true}); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a second upload at the same time: %v", err)
	}
	if err := first.Send(&v1.PutFileRequest{Data: []byte("whole"), Last: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); string(b) != "first whole" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestFilesAreTakenUpWhereTheyWereLeft(t *testing.T) {
	guests, _ := host(t, newAgent(t))
	path := filepath.Join(t.TempDir(), "a/b/file")
	if size, err := put(t, guests, &v1.PutFileRequest{Path: path, Data: []byte("hello ")}, &v1.PutFileRequest{Data: []byte("wor")}); err != nil || size != 9 {
		t.Fatalf("first part: %d, %v", size, err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("half a file is in its place")
	}
	if _, err := put(t, guests, &v1.PutFileRequest{Path: path, Offset: 10, Data: []byte("x")}); connect.CodeOf(err) != connect.CodeOutOfRange {
		t.Errorf("a gap: %v", err)
	}
	if size, err := put(t, guests, &v1.PutFileRequest{Path: path, Mode: 0o751, Offset: 6, Data: []byte("world"), Last: true}); err != nil || size != 11 {
		t.Fatalf("last part: %d, %v", size, err)
	}
	if b, err := os.ReadFile(path); string(b) != "hello world" {
		t.Errorf("%q, %v", b, err)
	}
	stream, err := guests.GetFile(t.Context(), connect.NewRequest(&v1.GetFileRequest{Path: path, Offset: 6}))
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for first := true; stream.Receive(); first = false {
		if m := stream.Msg(); first && (m.GetSize() != 11 || m.GetMode() != 0o751) {
			t.Errorf("first message %v", m)
		}
		got = append(got, stream.Msg().GetData()...)
	}
	if string(got) != "world" || stream.Err() != nil {
		t.Errorf("%q, %v", got, stream.Err())
	}
	if _, err := put(t, guests, &v1.PutFileRequest{Path: "relative", Last: true}); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("relative path: %v", err)
	}
	if _, err := put(t, guests, &v1.PutFileRequest{Path: filepath.Join(path, "x"), Last: true}); err == nil {
		t.Error("a file below a file was made")
	}
}

func TestAttachPassesInputOutputAndTheEnd(t *testing.T) {
	_, processes := host(t, newAgent(t))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := processes.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{
		Id: "a", Command: []string{"/bin/sh", "-c", "echo ready; cat; echo done >&2; exit 9"}, Stdin: true,
	})); err != nil {
		t.Fatal(err)
	}
	// The first caller leaves after the first line; the second caller continues from there.
	first := processes.Attach(ctx)
	first.Send(&v1.AttachRequest{Id: "a"})
	var out []byte
	for !bytes.Contains(out, []byte("ready\n")) {
		m, err := first.Receive()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m.GetStdout()...)
	}
	first.CloseResponse()
	second := processes.Attach(ctx)
	second.Send(&v1.AttachRequest{Id: "a", StdoutOffset: uint64(len(out)), Stdin: []byte("input\n")})
	second.Send(&v1.AttachRequest{StdinOffset: 6, StdinClosed: true})
	var errors []byte
	for {
		m, err := second.Receive()
		if err != nil {
			t.Fatal(err)
		}
		out, errors = append(out, m.GetStdout()...), append(errors, m.GetStderr()...)
		if e := m.GetEnded(); e != nil {
			if e.GetExitCode() != 9 || string(out) != "ready\ninput\n" || string(errors) != "done\n" {
				t.Errorf("%v, stdout %q, stderr %q", e, out, errors)
			}
			return
		}
	}
}

func TestUnknownProcessesAreNotFound(t *testing.T) {
	_, processes := host(t, newAgent(t))
	if _, err := processes.SignalProcess(t.Context(), connect.NewRequest(&v1.SignalProcessRequest{Id: "a", Signal: 9})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("signal: %v", err)
	}
	stream := processes.Attach(t.Context())
	stream.Send(&v1.AttachRequest{Id: "a"})
	if _, err := stream.Receive(); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("attach: %v", err)
	}
	if _, err := processes.ForgetProcess(t.Context(), connect.NewRequest(&v1.ForgetProcessRequest{Id: "a"})); err != nil {
		t.Errorf("forget: %v", err)
	}
}

// cluster makes agents of one cluster on loopback addresses, and returns the first one's socket.
func cluster(t *testing.T, names ...string) (socket string, agents []*agent.Agent) {
	return certified(t, func(authority *ca.Authority, guest string) (ca.KeyPair, error) {
		return authority.IssueGuest("md", guest, 0)
	}, names...)
}

// certified is cluster with other certificates.
func certified(t *testing.T, issue func(authority *ca.Authority, guest string) (ca.KeyPair, error), names ...string) (socket string, agents []*agent.Agent) {
	authority, err := ca.New("md")
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	probe, err := net.Listen("tcp4", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	probe.Close()
	port := probe.Addr().(*net.TCPAddr).Port
	var peers []*v1.Peer
	for i, name := range names {
		peers = append(peers, &v1.Peer{Name: name, Address: fmt.Sprintf("127.0.0.%d", 2+i)})
	}
	for i, name := range names {
		pair, err := issue(authority, name)
		if err != nil {
			t.Fatal(err)
		}
		a := newAgent(t)
		path := filepath.Join(t.TempDir(), "sock")
		a.Join(t, &v1.Identity{
			Name: name, Cluster: "md", Address: peers[i].GetAddress(), User: me.Username, Uid: 1000, Peers: peers,
			CaCertificate: authority.CertificatePEM(), Certificate: pair.Certificate, Key: pair.Key,
		}, port, path)
		agents = append(agents, a)
		if i == 0 {
			socket = path
		}
	}
	return socket, agents
}

// launcher builds watari-guest-rsh for the agent at a socket, and returns its path.
func launcher(t *testing.T, socket string) string {
	path := filepath.Join(t.TempDir(), "watari-guest-rsh")
	if text, err := exec.Command("../../scripts/guest-rsh.sh", path, socket).CombinedOutput(); err != nil {
		t.Fatalf("build watari-guest-rsh: %v: %s", err, text)
	}
	return path
}

func TestRemoteShell(t *testing.T) {
	socket, _ := cluster(t, "md-0", "md-1")
	program := launcher(t, socket)
	long := strings.Repeat("0123456789", 6000)
	for _, test := range []struct {
		args        []string
		stdin       string
		stdout, err string
		code        int
	}{
		{[]string{"md-1", "echo", "out;", "echo err >&2; exit 4"}, "", "out\n", "err\n", 4},
		{[]string{"127.0.0.3", "cat; kill -15 $$"}, strings.Repeat("line\n", 50000), strings.Repeat("line\n", 50000), "", 143},
		{[]string{"-n", "md-1", "cat"}, "not passed", "", "", 0},
		{[]string{"md-1", "echo", long}, "", long + "\n", "", 0},
		{[]string{"md-1", "echo", long, long, long}, "", "", "longer than 128 KiB", 255},
		{[]string{"md-7", "true"}, "", "", "watari-guest rsh: md-7: md-7 is no guest of this cluster", 255},
		{[]string{}, "", "", "usage: watari-guest rsh", 255},
		{[]string{"md-1", ""}, "", "", "usage: watari-guest rsh", 255},
	} {
		var out, errs bytes.Buffer
		command := exec.Command(program, test.args...)
		command.Stdin, command.Stdout, command.Stderr = strings.NewReader(test.stdin), &out, &errs
		command.Run()
		if code := command.ProcessState.ExitCode(); code != test.code || out.String() != test.stdout || !strings.Contains(errs.String(), test.err) {
			t.Errorf("%.50q: exit %d, %d bytes on stdout, stderr %q", test.args, code, out.Len(), errs.String())
		}
	}
}

// awaitProcess waits until the peer has a process that runs a shell command, or has none.
func awaitProcess(t *testing.T, processes watariv1connect.ProcessServiceClient, command string, there bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		list, err := processes.ListProcesses(t.Context(), connect.NewRequest(&v1.ListProcessesRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		running := slices.ContainsFunc(list.Msg.GetProcesses(), func(p *v1.Process) bool {
			return p.GetRunning() && slices.Contains(p.GetCommand(), command)
		})
		if running == there {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s runs: %v", command, running)
		}
	}
}

func TestWhatALauncherStartedEndsWithIt(t *testing.T) {
	socket, agents := cluster(t, "md-0", "md-1")
	program := launcher(t, socket)
	_, processes := host(t, agents[1])
	for _, test := range []struct {
		signal os.Signal
		code   int
	}{{unix.SIGKILL, -1}, {unix.SIGTERM, 143}, {unix.SIGUSR1, 138}} {
		launched := exec.Command(program, "md-1", "exec sleep 1001")
		if err := launched.Start(); err != nil {
			t.Fatal(err)
		}
		awaitProcess(t, processes, "exec sleep 1001", true)
		launched.Process.Signal(test.signal)
		launched.Wait()
		if code := launched.ProcessState.ExitCode(); code != test.code {
			t.Errorf("%v: exit %d", test.signal, code)
		}
		awaitProcess(t, processes, "exec sleep 1001", false)
	}
}

func TestSignalsPassWhileNobodyTakesTheOutput(t *testing.T) {
	socket, agents := cluster(t, "md-0", "md-1")
	_, processes := host(t, agents[1])
	const command = "exec dd if=/dev/zero bs=64k"
	launched := exec.Command(launcher(t, socket), "md-1", command)
	out, err := launched.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := launched.Start(); err != nil {
		t.Fatal(err)
	}
	awaitProcess(t, processes, command, true)
	launched.Process.Signal(unix.SIGTERM)
	awaitProcess(t, processes, command, false)
	go io.Copy(io.Discard, out)
	if err := launched.Wait(); launched.ProcessState.ExitCode() != 143 {
		t.Errorf("%v", err)
	}
}

// Every cluster has its own authority. This is one that has signed for another cluster.
func TestAGuestWithACertificateOfAnotherClusterIsNotServed(t *testing.T) {
	_, agents := certified(t, func(authority *ca.Authority, guest string) (ca.KeyPair, error) {
		return authority.IssueGuest(map[string]string{"md-0": "other", "md-1": "md", "md-2": "md"}[guest], guest, 0)
	}, "md-0", "md-1", "md-2")
	for from, allowed := range map[int]bool{0: false, 2: true} {
		if err := reach(t, agents[from], "md-1"); (err == nil) != allowed {
			t.Errorf("a call from md-%d: %v", from, err)
		}
	}
}

// reach returns why a guest does not answer another one's calls; nil: it does.
func reach(t *testing.T, from *agent.Agent, to string) error {
	ctx, peer := from.Peer(t, to)
	_, err := peer.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: "none"}))
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil
	}
	return err
}

// A guest with a new certificate accepts no earlier one, at either end, and on no connection from before.
func TestRevokedCertificatesOfGuestsAreVoid(t *testing.T) {
	var authority *ca.Authority
	_, agents := certified(t, func(a *ca.Authority, guest string) (ca.KeyPair, error) {
		authority = a
		return a.IssueGuest("md", guest, 0)
	}, "md-0", "md-1")
	renew := func(guest int) {
		pair, err := authority.IssueGuest("md", fmt.Sprintf("md-%d", guest), 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := agents[guest].Renew(pair.Certificate, pair.Key); err != nil {
			t.Fatal(err)
		}
	}
	ctx, peer := agents[0].Peer(t, "md-1")
	if _, err := peer.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{Id: "a", Command: []string{"cat"}, Stdin: true})); err != nil {
		t.Fatal(err)
	}
	stream := peer.Attach(ctx) // keeps the connection
	if err := stream.Send(&v1.AttachRequest{Id: "a"}); err != nil {
		t.Fatal(err)
	}
	defer stream.CloseResponse()
	defer stream.CloseRequest()
	for i, answers := range []map[int]bool{{0: true, 1: true}, {0: false, 1: false}, {0: true, 1: true}} {
		switch i {
		case 1:
			renew(1)
		case 2:
			renew(0)
		}
		for from, want := range answers {
			err := reach(t, agents[from], fmt.Sprintf("md-%d", 1-from))
			if (err == nil) != want || err != nil && connect.CodeOf(err) != connect.CodeUnavailable { // so that rsh tries again
				t.Errorf("%d renewed, md-%d calls: %v", i, from, err)
			}
		}
	}
}

func TestPeersMayNotBeRoot(t *testing.T) {
	_, agents := cluster(t, "md-0", "md-1")
	_, processes := host(t, agents[1])
	ctx, peer := agents[0].Peer(t, "md-1")
	_, err := peer.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{Id: "a", Command: []string{"true"}, User: "daemon"}))
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("another user: %v", err)
	}
	if _, err := peer.ListProcesses(ctx, connect.NewRequest(&v1.ListProcessesRequest{})); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("list: %v", err)
	}
	// A peer cannot reach processes that the host started.
	if _, err := processes.StartProcess(t.Context(), connect.NewRequest(&v1.StartProcessRequest{Id: "b", Command: []string{"sleep", "100"}})); err != nil {
		t.Fatal(err)
	}
	if _, err := peer.SignalProcess(ctx, connect.NewRequest(&v1.SignalProcessRequest{Id: "b", Signal: 9})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("signal the host's process: %v", err)
	}
	processes.ForgetProcess(t.Context(), connect.NewRequest(&v1.ForgetProcessRequest{Id: "b"}))
	guests := watariv1connect.NewGuestServiceClient(&http.Client{Transport: agents[0].PeerTransport()}, agents[1].PeerURL())
	if _, err := guests.Describe(t.Context(), connect.NewRequest(&v1.DescribeRequest{})); err == nil {
		t.Error("a peer was served GuestService")
	}
}
