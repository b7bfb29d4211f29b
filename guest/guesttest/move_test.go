package guesttest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

func TestOutputGoesOnOverALiveMigration(t *testing.T) {
	image := Image(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	identity := Identities(t, 1)[0]
	directory := t.TempDir()
	source := Boot(t, image, identity, 0, filepath.Join(directory, "a"))
	source.Ready(time.Minute)
	const lines = 30000
	start := &v1.StartProcessRequest{Id: "count", Command: []string{"/bin/sh", "-c",
		fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i; done; exit 5", lines)}}
	if _, err := source.Processes.StartProcess(ctx, connect.NewRequest(start)); err != nil {
		t.Fatal(err)
	}
	var out []byte
	read := func(g *Guest, enough int) *v1.Process {
		stream := g.Processes.Attach(ctx)
		defer stream.CloseResponse()
		defer stream.CloseRequest()
		if err := stream.Send(&v1.AttachRequest{Id: "count", StdoutOffset: uint64(len(out))}); err != nil {
			return nil
		}
		for enough == 0 || len(out) < enough {
			m, err := stream.Receive()
			if err != nil {
				return nil
			}
			if b := m.GetStdout(); len(b) > 0 {
				if m.GetStdoutOffset() != uint64(len(out)) {
					t.Fatalf("output from %d after %d", m.GetStdoutOffset(), len(out))
				}
				out = append(out, b...)
			}
			if m.GetEnded() != nil {
				return m.GetEnded()
			}
		}
		return nil
	}
	read(source, 2000)
	socket := filepath.Join(directory, "migrate")
	target := Restore(t, image, identity, 0, filepath.Join(directory, "b"), "unix:"+socket)
	// The test reads from the source during the move, so that bytes are in flight.
	moved := make(chan struct{})
	go func() { read(source, 0); close(moved) }()
	target.Until(ctx, "wait for", func() error { _, err := os.Stat(socket); return err })
	source.Move("unix:" + socket)
	source.End()
	<-moved
	before, begun := len(out), time.Now()
	var ended *v1.Process
	target.Until(ctx, "read on from", func() error {
		if ended = read(target, 0); ended == nil {
			return fmt.Errorf("cut off after %d bytes", len(out))
		}
		return nil
	})
	t.Logf("%d bytes before the move, %d after, read in %v", before, len(out)-before, time.Since(begun))
	if got := strings.Count(string(out), "\n"); got != lines || ended.GetExitCode() != 5 || !strings.HasSuffix(string(out), fmt.Sprintf("line %d\n", lines)) {
		t.Errorf("%d lines, %v", got, ended)
	}
	if d := target.Ready(10 * time.Second); d.GetName() != identity.GetName() {
		t.Errorf("the guest believes to be %v", d)
	}
}

func TestGuestsForkedFromOneTemplate(t *testing.T) {
	image := Image(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	directory := t.TempDir()
	identities := Identities(t, 2)
	template := Boot(t, image, &v1.Identity{Name: "template"}, 0, filepath.Join(directory, "t"))
	template.Until(ctx, "boot", func() error {
		_, err := template.Guests.Describe(ctx, connect.NewRequest(&v1.DescribeRequest{}))
		return err
	})
	state := filepath.Join(directory, "state")
	template.Move("exec:cat > " + state)
	template.End()
	begun := time.Now()
	var guests []*Guest
	for i, identity := range identities {
		identity.Entropy = []byte(fmt.Sprintf("%064d", i))
		guests = append(guests, Restore(t, image, identity, i, filepath.Join(directory, "net"), "exec:cat "+state))
	}
	for _, g := range guests {
		g.Ready(time.Minute)
	}
	t.Logf("two guests identified after %v", time.Since(begun))
	secret := "head -c 16 /dev/urandom | od -An -tx1"
	if a, b := guests[0].MustRun(ctx, "", secret), guests[1].MustRun(ctx, "", secret); a == b {
		t.Errorf("both draw the random number %s", a)
	}
	pid := func(g *Guest) int {
		n, err := strconv.Atoi(strings.TrimSpace(g.MustRun(ctx, "", "echo $$")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if a, b := pid(guests[0]), pid(guests[1]); a > b-500 && a < b+500 {
		t.Errorf("their processes have the ids %d and %d", a, b)
	}
	for _, g := range guests {
		homeReady(ctx, g)
	}
	t.Logf("with their home after %v", time.Since(begun))
	out := guests[0].MustRun(ctx, "watari", "watari-guest rsh md-1 'hostname; cat /sys/class/net/eth0/address'")
	t.Logf("a command in the other after %v", time.Since(begun))
	if out != "md-1\n"+identities[1].GetMac()+"\n" {
		t.Errorf("the other says %q", out)
	}
	// The identity of a newer start replaces the old one; the identity of an older start is refused.
	newer := proto.CloneOf(identities[0])
	newer.Epoch = 7
	guests[0].Identity = newer
	if d := guests[0].Ready(10 * time.Second); d.GetEpoch() != 7 {
		t.Errorf("epoch %d", d.GetEpoch())
	}
	_, err := guests[0].Guests.Identify(ctx, connect.NewRequest(&v1.IdentifyRequest{Identity: identities[0]}))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("an older identity: %v", err)
	}
}
