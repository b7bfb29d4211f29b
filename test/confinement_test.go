package test

// confinement_test.go - the confinement of a guest's QEMU on its host.

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestQEMURunsUnprivileged(t *testing.T) {
	newCluster(t, "caged", 1)
	settled(t, "caged", 1)
	status := qemuStatus(t, "watari-caged-0")
	for _, want := range []string{
		`(?m)^Uid:\s+[1-9]`,  // not root
		`(?m)^CapEff:\s+0+$`, // no capabilities
		`(?m)^Seccomp:\s+2$`, // a filter of system calls (proc(5))
	} {
		if !regexp.MustCompile(want).MatchString(status) {
			t.Errorf("QEMU's status does not match %s:\n%s", want, status)
		}
	}
}

// An administrator changes QEMU's user. Existing guests keep running and can move. If new guests are refused, the
// message names the remedy. Templates are made again.
func TestQEMUsUserIsChanged(t *testing.T) {
	full(t)
	var host string
	use := func(user string) { // empty: the user that the lab chose
		inHost(t, host, `sed -i '/^user = /d; /^group = /d' /etc/libvirt/qemu.conf`)
		if user != "" {
			inHost(t, host, `printf 'user = "%s"\ngroup = "nogroup"\n' `+user+` >> /etc/libvirt/qemu.conf`)
		}
		kill9(t, host, "libvirtd")
		until(t, time.Minute, "host "+host+" says who QEMU runs as", func() (bool, string) {
			shown := must(t, "host", "show", host)
			return strings.Contains(shown, "as nobody,") == (user == "nobody") && strings.Contains(shown, "guests run:"), shown
		})
	}
	defer func() {
		if host != "" {
			must(t, "host", "drain", host, "--undo")
			use("")
		}
	}()
	// There is a guest on each host. The guests are removed before the host gets its user back.
	t.Run("changed", func(t *testing.T) {
		newCluster(t, "before", len(hosts), "--spread", "host")
		unmarked := mark(t, "before-0")
		host = guestNamed(t, "before-0").Host
		use("nobody")

		newCluster(t, "beside", len(hosts), "--spread", "host")
		// If libvirt can record the owner of a file (trusted extended attributes), it refuses the file for the new
		// user.
		events := must(t, "events")
		if refused := strings.Contains(events, "already in use"); refused && !strings.Contains(events, "watari host drain --undo") {
			t.Errorf("the remedy is not said:\n%s", events)
		} else if !refused {
			t.Log("libvirt did not refuse the image to the new user here")
		}
		must(t, "host", "drain", host, "--wait")
		must(t, "host", "drain", host, "--undo")
		settled(t, "before", len(hosts))
		hostsReady(t)
		newCluster(t, "after", len(hosts), "--spread", "host")
		settled(t, "after", len(hosts))
		placed := false
		for _, g := range guestsOf(t, "after") {
			if g.Host != host {
				continue
			}
			placed = true
			if status := qemuStatus(t, "watari-"+g.Meta.Name); !regexp.MustCompile(`(?m)^Uid:\s+65534`).MatchString(status) {
				t.Errorf("guest %s on %s is not nobody's:\n%s", g.Meta.Name, host, status)
			}
		}
		if !placed {
			t.Fatalf("no guest was placed on host %s:\n%s\n%s", host, must(t, "host", "show", host), must(t, "guest", "list"))
		}
		if described := inHost(t, host, "cat "+agentState+"/templates/*.json"); !strings.Contains(described, " nobody ") {
			t.Errorf("no template was made again for the new user: %s", described)
		}
		must(t, "migrate", "before-0", "--to", host)
		if lost := unmarked(); len(lost) > 0 {
			t.Errorf("guests were restarted: %v", lost)
		}
	})
}

// qemuStatus returns /proc/<pid>/status of the QEMU that runs a domain.
func qemuStatus(t *testing.T, domain string) string {
	t.Helper()
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), "\x00guest="+domain+",") {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		if err != nil {
			t.Fatal(err)
		}
		return string(status)
	}
	t.Fatalf("no process runs domain %s", domain)
	return ""
}
