// Package guesttest boots real guests under QEMU, for tests of the guest's parts. Two guests at most share a
// network: each is the other's gateway, as a host would be.
package guesttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/guest/image"
	"watari/guest/link"
)

// Guest is a running guest.
type Guest struct {
	Identity  *v1.Identity
	Guests    watariv1connect.GuestServiceClient
	Processes watariv1connect.ProcessServiceClient
	Console   string // path of its console's log

	t       testing.TB
	client  *link.Client
	monitor string // path of QEMU's monitor (QMP)
	qemu    *exec.Cmd
	ended   chan struct{}
}

// Cache keeps packages and kernel from test to test.
const Cache = "/var/cache/watari/test-images"

var built sync.Once // the image that Image makes

// Image is the directory of an image to boot, with kernel, initrd and root (squashfs): the one that WATARI_TEST_IMAGE
// names, or one of Open MPI made here, which is for the long tests only.
func Image(t testing.TB) string {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("qemu-system-x86_64 is not installed (Debian package qemu-system-x86)")
	}
	directory := os.Getenv("WATARI_TEST_IMAGE")
	if directory == "" {
		if os.Getenv("WATARI_TEST_FULL") == "" {
			t.Skip("one of the long ones: make test-full; or name an image's directory by WATARI_TEST_IMAGE")
		}
		directory = filepath.Join(Cache, "openmpi")
		built.Do(func() {
			recipe := image.Recipe{Packages: []string{"openmpi-bin"}, GuestAgent: Agent(t), Cache: Cache}
			if _, err := image.Build(t.Context(), recipe, directory, nil); err != nil {
				t.Fatalf("build an image: %v", err)
			}
		})
	}
	for _, name := range []string{"kernel", "initrd", "root"} {
		if _, err := os.Stat(filepath.Join(directory, name)); err != nil {
			t.Fatalf("the image to test with: %v", err)
		}
	}
	return directory
}

// Agent builds watari-guest and gives its path.
func Agent(t testing.TB) string {
	t.Helper()
	agent := filepath.Join(t.TempDir(), "watari-guest")
	build := exec.Command("go", "build", "-o", agent, "watari/cmd/watari-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build watari-guest: %v: %s", err, text)
	}
	return agent
}

// Identities makes the identities of a cluster of n guests of which the first serves the home.
func Identities(t testing.TB, n int) []*v1.Identity {
	authority, err := ca.New("md")
	if err != nil {
		t.Fatal(err)
	}
	var list []*v1.Identity
	var peers []*v1.Peer
	for i := range n {
		name, address := fmt.Sprintf("md-%d", i), fmt.Sprintf("10.77.0.%d", 10+i)
		pair, err := authority.IssueGuest("md", name)
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, &v1.Peer{Name: name, Address: address, Slots: 1})
		list = append(list, &v1.Identity{
			GuestUid: fmt.Sprintf("00000000-0000-4000-8000-00000000000%d", i), Name: name, Cluster: "md",
			Address: address, Prefix: "10.77.0.0/24", Mtu: 1420, Mac: mac(i),
			Gateway: "169.254.77.1", GatewayMac: mac(1 - i),
			MachineId: fmt.Sprintf("%032d", i+1), Entropy: make([]byte, 64),
			CaCertificate: authority.CertificatePEM(), Certificate: pair.Certificate, Key: pair.Key,
			HomeServer: "10.77.0.10", Epoch: 1, User: "watari", Uid: 1000,
		})
	}
	for _, i := range list {
		i.Peers = peers
	}
	return list
}

func mac(i int) string { return fmt.Sprintf("02:77:0a:4d:00:%02x", 10+i) }

// Boot boots a guest; index tells the two ends of network apart, a path that both are given.
func Boot(t testing.TB, image string, identity *v1.Identity, index int, network string) *Guest {
	return start(t, image, identity, index, network)
}

// Restore starts a guest from a state that Move has written, or will send.
func Restore(t testing.TB, image string, identity *v1.Identity, index int, network, from string) *Guest {
	return start(t, image, identity, index, network, "-incoming", from)
}

func start(t testing.TB, image string, identity *v1.Identity, index int, network string, more ...string) *Guest {
	directory := t.TempDir()
	g := &Guest{Identity: identity, t: t, Console: filepath.Join(directory, "console"), ended: make(chan struct{})}
	channel := filepath.Join(directory, "channel")
	ends := []string{network + ".0", network + ".1"}
	g.monitor = filepath.Join(directory, "monitor")
	g.qemu = exec.Command("qemu-system-x86_64", append(more,
		"-qmp", "unix:"+g.monitor+",server=on,wait=off",
		"-machine", "pc,usb=off", "-cpu", "max", "-accel", "tcg", "-m", "256", "-smp", "1",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "file:"+g.Console,
		"-kernel", filepath.Join(image, "kernel"), "-initrd", filepath.Join(image, "initrd"),
		"-append", "console=ttyS0 quiet watari.root=/dev/vda watari.rootfstype=squashfs",
		"-drive", "file="+filepath.Join(image, "root")+",if=none,id=d,format=raw,readonly=on",
		"-device", "virtio-blk-pci,drive=d",
		"-chardev", "socket,path="+channel+",server=on,wait=off,id=c",
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=c,name="+link.PortName,
		"-netdev", fmt.Sprintf("dgram,id=n,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", ends[index], ends[1-index]),
		"-device", "virtio-net-pci,netdev=n,romfile=,mac=52:54:00:12:34:56", "-device", "virtio-rng-pci")...)
	g.qemu.Stderr = os.Stderr
	if err := g.qemu.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		g.qemu.Wait()
		close(g.ended)
	}()
	g.client = link.NewClient(func(ctx context.Context) (net.Conn, error) { return link.DialUnix(ctx, channel) })
	g.Guests = watariv1connect.NewGuestServiceClient(g.client, "http://guest")
	g.Processes = watariv1connect.NewProcessServiceClient(g.client, "http://guest", connect.WithGRPC())
	t.Cleanup(g.stop)
	return g
}

// Move sends the running guest's state to a URI of QEMU's (migrate) and waits until it is there.
func (g *Guest) Move(uri string) {
	g.t.Helper()
	conn, err := net.Dial("unix", g.monitor)
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	replies := json.NewDecoder(conn)
	ask := func(command string) (answer struct{ Status string }) {
		fmt.Fprintln(conn, command)
		for {
			var reply struct {
				Return *struct{ Status string }
				Error  *struct{ Desc string }
			}
			if err := replies.Decode(&reply); err != nil {
				g.t.Fatalf("%s: %v", command, err)
			}
			if reply.Error != nil {
				g.t.Fatalf("%s: %s", command, reply.Error.Desc)
			}
			if reply.Return != nil {
				return *reply.Return
			}
		}
	}
	ask(`{"execute": "qmp_capabilities"}`)
	ask(fmt.Sprintf(`{"execute": "migrate-set-parameters", "arguments": {"max-bandwidth": %d}}`, 1<<33))
	ask(fmt.Sprintf(`{"execute": "migrate", "arguments": {"uri": %q}}`, uri))
	for {
		switch status := ask(`{"execute": "query-migrate"}`).Status; status {
		case "completed":
			return
		case "failed", "cancelled":
			g.t.Fatalf("moving %s to %s: %s", g.Identity.GetName(), uri, status)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (g *Guest) stop() {
	g.qemu.Process.Kill()
	<-g.ended
	g.client.Close()
	if console, err := os.ReadFile(g.Console); err == nil && g.t.Failed() {
		g.t.Logf("console of %s:\n%s", g.Identity.GetName(), console)
	}
}

// End ends the guest as a crash would.
func (g *Guest) End() {
	g.qemu.Process.Kill()
	<-g.ended
	g.client.Close()
}

// Ready waits until the guest answers, and gives it its identity.
func (g *Guest) Ready(limit time.Duration) *v1.DescribeResponse {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var r *connect.Response[v1.IdentifyResponse]
	g.Until(ctx, "identify", func() (err error) {
		r, err = g.Guests.Identify(ctx, connect.NewRequest(&v1.IdentifyRequest{Identity: g.Identity, Now: timestamppb.Now()}))
		if c := connect.CodeOf(err); c == connect.CodeInternal || c == connect.CodeInvalidArgument {
			g.t.Fatalf("identify %s: %v", g.Identity.GetName(), err)
		}
		return err
	})
	return r.Msg.GetDescription()
}

// Until repeats what fails until it succeeds; the test fails when ctx or the guest ends before.
func (g *Guest) Until(ctx context.Context, what string, do func() error) {
	g.t.Helper()
	for {
		err := do()
		if err == nil {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			g.t.Fatalf("%s %s: %v", what, g.Identity.GetName(), err)
		case <-g.ended:
			g.t.Fatalf("%s %s: QEMU has ended", what, g.Identity.GetName())
		}
	}
}

// Result is what became of a command.
type Result struct {
	Stdout, Stderr string
	Code           int32
	Message        string
}

// Run runs a command line with sh as a user and waits for its end.
func (g *Guest) Run(ctx context.Context, user, script string) (Result, error) {
	id := fmt.Sprintf("t%d", time.Now().UnixNano())
	_, err := g.Processes.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{
		Id: id, Command: []string{"/bin/sh", "-c", script}, User: user,
	}))
	if err != nil {
		return Result{}, err
	}
	stream := g.Processes.Attach(ctx)
	defer stream.CloseResponse()
	if err := stream.Send(&v1.AttachRequest{Id: id}); err != nil {
		return Result{}, err
	}
	var r Result
	for {
		m, err := stream.Receive()
		if err != nil {
			return r, err
		}
		r.Stdout += string(m.GetStdout())
		r.Stderr += string(m.GetStderr())
		if e := m.GetEnded(); e != nil {
			r.Code, r.Message = e.GetExitCode(), e.GetMessage()
			stream.CloseRequest()
			_, err := g.Processes.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: id}))
			return r, err
		}
	}
}

// MustRun is Run for commands that have to succeed; it returns their output.
func (g *Guest) MustRun(ctx context.Context, user, script string) string {
	g.t.Helper()
	r, err := g.Run(ctx, user, script)
	if err == nil && r.Code != 0 {
		err = errors.New(r.Message)
	}
	if err != nil {
		g.t.Fatalf("%s: %s: exit %d, %v\nstdout: %s\nstderr: %s", g.Identity.GetName(), script, r.Code, err, r.Stdout, r.Stderr)
	}
	return r.Stdout
}
