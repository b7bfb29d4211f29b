package test

// faults_create_test.go - processes killed while a cluster is being created.

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stage is a state of a guest that its host reports, and how a test gets the host there.
type stage struct {
	name, message string
	noFork        bool
	clear         string // directories of the agent's state to be emptied before
	// over lists files that exist as soon as the stage is over: the agent reports its work on a template or an image up
	// to 250 ms late. Empty: the agent reports the end of the stage at once.
	over string
}

var (
	fetching  = stage{"its image is fetched", "fetching image", true, "images", "images/*/root"}
	template  = stage{"a template boots", "making a template: booting", false, "templates", "templates/*.save*"}
	saving    = stage{"a template is saved", "making a template: saving", false, "templates", "templates/*.json"}
	booting   = stage{"it boots", "waits for its guest agent", true, "", ""}
	placed    = stage{"it is placed", "", true, "", ""}
	restoring = stage{"it is restored", "restoring", false, "", ""}
)

// createFault is the process that is killed on the host of guest create-0, or the manager.
type createFault struct {
	victim  string
	stage   stage
	pattern string // pattern of the victim's command line; empty: the manager
	crash   bool   // the whole host crashes after the victim was stopped
}

const (
	anAgent   = "watari-agent --manager"
	aDaemon   = "libvirtd"
	ofGuest   = "qemu-system.*watari-create-0"
	ofMaking  = "qemu-system.*watari-template"
	ofManager = ""
)

var createFaults = []createFault{
	{"manager", placed, ofManager, false},
	{"manager", template, ofManager, false},
	{"manager", booting, ofManager, false},
	{"QEMU", template, ofMaking, false},
	{"agent", fetching, anAgent, false},
	{"agent", template, anAgent, false},
	{"agent", saving, anAgent, false},
	{"agent", restoring, anAgent, false},
	{"agent", booting, anAgent, false},
	{"libvirt daemon", template, aDaemon, false},
	{"libvirt daemon", saving, aDaemon, false},
	{"libvirt daemon", restoring, aDaemon, false},
	{"libvirt daemon", booting, aDaemon, false},
	{"QEMU", booting, ofGuest, false},
	{"host", booting, ofGuest, true},
}

func TestFaultsDuringACreate(t *testing.T) {
	full(t)
	for _, f := range createFaults {
		t.Run(f.victim+" killed while "+f.stage.name, func(t *testing.T) {
			strikes(t, func() (bool, string) { return failDuringACreate(t, f) })
		})
	}
}

// failDuringACreate creates a cluster, kills a process in a stage of that, and waits until everything is well again.
func failDuringACreate(t *testing.T, f createFault) (struck bool, how string) {
	t.Helper()
	hostsReady(t)
	prepareStage(t, f.stage)
	args := []string{"cluster", "create", "create", "--guests", "2", "--spread", "site", "--memory", "256M", "--image", imageName,
		fmt.Sprintf("--no-fork=%v", f.stage.noFork)}
	must(t, args...)
	defer func() { must(t, "cluster", "delete", "create", "--wait") }()
	host, reached := awaitStage(t, "create-0", f.stage)
	switch {
	case !reached:
		how = "the guest was ready before the stage was seen"
	case f.pattern == ofManager:
		struck, how = killManagerInStage(t, "create-0", f.stage, host)
	default:
		struck, how = killOnHostInStage(t, "create-0", f, host)
	}
	// Allow time for creating, in addition to the time for recovery.
	out, err := shared.watari(time.Minute, append(args, "--wait")...)
	if err != nil {
		t.Errorf("the cluster is not ready a minute after the fault: %v: %s", err, out)
	}
	settled(t, "create", 2)
	hostsReady(t)
	return struck, how
}

// prepareStage makes all hosts pass through a stage.
func prepareStage(t *testing.T, s stage) {
	t.Helper()
	if s.clear != "" {
		for _, host := range hosts {
			inHost(t, host, fmt.Sprintf("rm -rf %s/%s/* %s/%s/.blobs/*", agentState, s.clear, agentState, s.clear))
		}
	}
	if !s.noFork { // an agent remembers for a while that it could not make a template
		for _, host := range hosts {
			mustKill(t, host, anAgent)
		}
		hostsReady(t)
	}
}

// awaitStage waits until a guest is in a stage, and returns the guest's host. It returns false if the stage passed
// unseen.
func awaitStage(t *testing.T, name string, s stage) (host string, reached bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		g := guestNamed(t, name)
		if g.Ready || g.Host != "" && strings.Contains(g.Message, s.message) {
			return g.Host, !g.Ready
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s on %s: %s: %s; want %q", name, g.Host, g.State, g.Message, s.message)
		}
	}
}

// signs returns the existing files that show that a stage is over.
func (s stage) signs(t *testing.T, host string) []string {
	t.Helper()
	if s.over == "" {
		return nil
	}
	return strings.Fields(inHost(t, host, "cd "+agentState+"; ls -d "+s.over+" 2>/dev/null || true"))
}

// inStage reports whether a guest's host is still in a stage, judged by its report to the manager and the files on its
// disk.
func inStage(t *testing.T, name string, s stage, host string) (bool, string) {
	t.Helper()
	g := guestNamed(t, name)
	how := fmt.Sprintf("%s on %s is %s: %q", name, g.Host, g.State, g.Message)
	if there := s.signs(t, host); len(there) > 0 {
		return false, fmt.Sprintf("%s, but the host has %v", how, there)
	}
	return !g.Ready && g.Host == host && strings.Contains(g.Message, s.message), how
}

// killOnHostInStage stops a process, checks that the stage is not over, and only then kills the process or crashes its
// host.
func killOnHostInStage(t *testing.T, name string, f createFault, host string) (struck bool, how string) {
	t.Helper()
	victims := processesOn(host, f.pattern)
	struck, how = pinned(t, victims, func() (bool, string) { return inStage(t, name, f.stage, host) })
	switch {
	case !struck:
	case f.crash:
		must(t, "lab", "host", "crash", "--name", labName, host)
		must(t, "lab", "host", "start", "--name", labName, host)
	case !signalAll(t, victims, syscall.SIGKILL):
		struck, how = false, "the stopped process has ended: "+how
	}
	return struck, how
}

// killManagerInStage kills the manager and starts another. The host's disk, or the host's first report to the next
// manager, shows that the stage was not over.
func killManagerInStage(t *testing.T, name string, s stage, host string) (struck bool, how string) {
	t.Helper()
	killManager(t)
	if s.over != "" {
		there := s.signs(t, host)
		startManager(t)
		return len(there) == 0, fmt.Sprintf("of %s the host has %v", s.over, there)
	}
	startManager(t)
	until(t, settle, "the host of guest "+name+" has told of it", func() (bool, string) {
		g := guestNamed(t, name)
		return !strings.HasSuffix(g.State, "_UNKNOWN"), g.Message
	})
	return inStage(t, name, s, host)
}
