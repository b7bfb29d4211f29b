package test

// faults_create_test.go - what is killed while a cluster is being created.

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// stage is what a guest's host says it does about it, and how a test makes it do so.
type stage struct {
	name, message string
	noFork        bool
	clear         string // directories of the agent's state that are emptied before
}

var (
	fetching  = stage{"its image is fetched", "fetching image", true, "images"}
	template  = stage{"a template boots", "making a template: booting", false, "templates"}
	saving    = stage{"a template is saved", "making a template: saving", false, "templates"}
	booting   = stage{"it boots", "waits for its guest agent", true, ""}
	placed    = stage{"it is placed", "", true, ""}
	restoring = stage{"it is restored", "restoring", false, ""}
)

func TestFaultsDuringACreate(t *testing.T) {
	full(t)
	agent := func(t *testing.T, host string) { kill9(t, host, "watari-agent --manager") }
	libvirtd := func(t *testing.T, host string) { kill9(t, host, "libvirtd") }
	for _, f := range []struct {
		victim string
		stage  stage
		do     func(t *testing.T, host string)
		lift   func(t *testing.T, host string)
	}{
		{"manager", placed, func(t *testing.T, _ string) { killManager(t) }, func(t *testing.T, _ string) { startManager(t) }},
		{"manager", template, func(t *testing.T, _ string) { killManager(t) }, func(t *testing.T, _ string) { startManager(t) }},
		{"manager", booting, func(t *testing.T, _ string) { killManager(t) }, func(t *testing.T, _ string) { startManager(t) }},
		{"QEMU", template, func(t *testing.T, host string) { kill9(t, host, "qemu-system.*watari-template") }, nil},
		{"agent", fetching, agent, nil},
		{"agent", template, agent, nil},
		{"agent", saving, agent, nil},
		{"agent", restoring, agent, nil},
		{"agent", booting, agent, nil},
		{"libvirt daemon", template, libvirtd, nil},
		{"libvirt daemon", saving, libvirtd, nil},
		{"libvirt daemon", restoring, libvirtd, nil},
		{"libvirt daemon", booting, libvirtd, nil},
		{"QEMU", booting, func(t *testing.T, host string) { kill9(t, host, "qemu-system.*watari-create") }, nil},
		{"host", booting, func(t *testing.T, host string) { must(t, "lab", "host", "crash", "--name", labName, host) },
			func(t *testing.T, host string) { must(t, "lab", "host", "start", "--name", labName, host) }},
	} {
		t.Run(f.victim+" killed while "+f.stage.name, func(t *testing.T) {
			hostsReady(t)
			if f.stage.clear != "" {
				for _, host := range hosts {
					inHost(t, host, fmt.Sprintf("rm -rf %s/%s/* %s/%s/.blobs/*", agentState, f.stage.clear, agentState, f.stage.clear))
				}
			}
			if !f.stage.noFork { // an agent remembers for a while that a template could not be made
				for _, host := range hosts {
					kill9(t, host, "watari-agent --manager")
				}
				hostsReady(t)
			}
			args := []string{"cluster", "create", "create", "--guests", "2", "--spread", "site", "--memory", "256M", "--image", imageName}
			if f.stage.noFork {
				args = append(args, "--no-fork")
			}
			must(t, args...)
			t.Cleanup(func() { must(t, "cluster", "delete", "create", "--wait") })
			host := awaitStage(t, "create-0", f.stage.message)
			f.do(t, host)
			if f.lift != nil {
				f.lift(t, host)
			}
			// Creating takes its own time, beside what the fault's end may take.
			out, err := shared.watari(time.Minute, "cluster", "create", "create", "--guests", "2", "--spread", "site", "--memory", "256M",
				"--image", imageName, fmt.Sprintf("--no-fork=%v", f.stage.noFork), "--wait")
			if err != nil {
				t.Errorf("the cluster is not ready a minute after the fault: %v: %s", err, out)
			}
			settled(t, "create", 2)
			hostsReady(t)
		})
	}
}

// awaitStage waits until a guest's message holds the words, and returns the guest's host. A stage that has passed
// before it was seen is none to be missed.
func awaitStage(t *testing.T, name, words string) string {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		g := guestNamed(t, name)
		if g.Host != "" && strings.Contains(g.Message, words) {
			return g.Host
		}
		if g.Ready {
			t.Logf("%s was ready before it was seen that %q", name, words)
			return g.Host
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s on %s: %s: %s; want %q", name, g.Host, g.State, g.Message, words)
		}
	}
}
