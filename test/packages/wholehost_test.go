package packages

// wholehost_test.go - the packages on whole hosts, as in docs/guide/install.md.

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// lab is two whole hosts of a release without agents, the starting point of docs/guide/install.md.
type lab struct {
	*testing.T
	name, config string
}

const watariBinary = "../../build/bin/watari"

// TestInstallOnWholeHosts follows docs/guide/install.md on hosts with systemd, AppArmor and KVM.
func TestInstallOnWholeHosts(t *testing.T) {
	requirements(t)
	_, err := os.Stat(watariBinary)
	need(t, err == nil, watariBinary+" (make build)")
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) { installOn(t, suite) })
	}
}

func installOn(t *testing.T, suite string) {
	l := &lab{t, "packages", filepath.Join(t.TempDir(), "admin.json")}
	_, _ = l.try(5*time.Minute, "lab", "down", "--name", l.name) // left by a run that was killed
	t.Cleanup(func() { _, _ = l.try(5*time.Minute, "lab", "down", "--name", l.name) })
	l.must(30*time.Minute, "lab", "up", "--name", l.name, "--sites", "1", "--hosts", "2", "--whole", "--cells", "1", "--suite", suite, "--agent=false")
	before := map[string][]string{}
	s := &system{t, t.TempDir()} // for making newer and older packages
	s.command("mkdir", filepath.Join(s.root, "tmp"))
	s.remake("99.2")
	s.remake("0~0")
	for _, host := range []string{"a1", "a2"} {
		before[host] = l.files(host)
		for _, name := range []string{"watari", "watari-agent"} {
			l.copy(host, built(name)[0], name+".deb")
			l.copy(host, filepath.Join(s.root, "tmp", name+"_99.2.deb"), name+"-newer.deb")
			l.copy(host, filepath.Join(s.root, "tmp", name+"_0~0.deb"), name+"-older.deb")
		}
		l.on(host, apt("install --no-install-recommends /root/watari.deb /root/watari-agent.deb"))
		l.on(host, "watari doctor --for host")
	}

	l.on("a1", "watari up --site kyoto")
	token := strings.TrimSpace(l.on("a1", "watari token create --host --site kyoto 2>/dev/null"))
	manager := "https://" + l.address("a1") + ":7070"
	l.on("a2", "watari up --manager "+manager+" --token "+token)
	l.on("a1", "systemctl is-active watari-manager watari-agent; systemctl is-enabled watari-manager watari-agent")
	l.on("a2", "systemctl is-active watari-agent; systemctl is-enabled watari-agent")
	l.hosts()

	// This machine is a user's machine. The mark in a guest's memory shows whether the guest keeps running.
	l.login(l.on("a1", "cat /var/lib/watari/admin.json"), manager)
	l.must(15*time.Minute, "image", "build", "tiny", "--packages", "procps")
	l.must(30*time.Minute, "cluster", "create", "g", "--guests", "2", "--memory", "256M", "--image", "tiny", "--spread", "host", "--wait")
	for _, guest := range []string{"g-0", "g-1"} {
		l.must(time.Minute, "guest", "exec", guest, "--", "sh", "-c", "echo here > /run/mark")
	}
	const pid = "systemctl show --property=MainPID watari-agent"
	for _, host := range []string{"a1", "a2"} {
		old := l.on(host, pid)
		l.on(host, apt("install --no-install-recommends /root/watari-newer.deb /root/watari-agent-newer.deb"))
		if l.on(host, pid) == old {
			t.Errorf("on %s the agent was not restarted by the upgrade", host)
		}
		if out, err := l.tryOn(host, apt("install --no-install-recommends --allow-downgrades /root/watari-older.deb /root/watari-agent-older.deb")); err == nil || !strings.Contains(out, "is older: it may not understand") {
			t.Errorf("a downgrade on %s: %v\n%s", host, err, out)
		}
		if out, err := l.tryOn(host, apt("purge watari-agent")); err == nil || !strings.Contains(out, "watari host drain") {
			t.Errorf("a purge under a guest on %s: %v\n%s", host, err, out)
		}
	}
	l.hosts()
	for _, guest := range []string{"g-0", "g-1"} {
		if out := l.must(5*time.Minute, "guest", "exec", guest, "--", "cat", "/run/mark"); !strings.Contains(out, "here") {
			t.Errorf("guest %s was restarted by the upgrade: %s", guest, out)
		}
	}
	l.changeAddress("a2")
	l.must(5*time.Minute, "cluster", "delete", "g", "--wait")

	for _, host := range []string{"a2", "a1"} {
		l.on(host, "watari down")
		l.on(host, apt("purge watari-agent watari"))
		for _, path := range l.files(host) {
			if !slices.Contains(before[host], path) {
				t.Errorf("left by the purge on %s: %s", host, path)
			}
		}
	}
}

// changeAddress gives a host another address, as DHCP may, and its own again after some minutes: until then, `watari lab exec` does not
// reach the host. The agent follows, and the guests reach each other again.
func (l *lab) changeAddress(host string) {
	l.Helper()
	own := l.address(host)
	octets := netip.MustParseAddr(own).As4()
	octets[3] += 100
	other := netip.AddrFrom4(octets).String()
	l.on(host, `
		cat >/root/readdress <<'END'
		device=$(ip -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -1)
		router=$(ip -4 route show default | sed -n 's/.* via \([^ ]*\).*/\1/p' | head -1)
		size=$(ip -4 -o addr show dev "$device" | sed -n 's/.* inet [^/]*\/\([0-9]*\).*/\1/p' | head -1)
		for address in `+other+" "+own+`; do
			ip addr flush dev "$device" scope global
			ip addr add "$address/$size" dev "$device"
			ip route replace default via "$router"
			sleep 240
		done
END
		systemd-run --collect sh /root/readdress`)
	for _, now := range []string{other, own} {
		for end := time.Now().Add(6 * time.Minute); ; time.Sleep(2 * time.Second) {
			out, err := l.try(time.Minute, "host", "show", host)
			if err == nil && strings.Contains(out, now+",") {
				break
			}
			if time.Now().After(end) {
				l.Fatalf("the agent of %s does not follow its address %s: %v\n%s", host, now, err, out)
			}
		}
		file := "/home/watari/at-" + now
		l.must(3*time.Minute, "guest", "exec", "g-0", "--", "touch", file)
		l.must(3*time.Minute, "guest", "exec", "g-1", "--", "ls", file)
	}
	l.on(host, "rm /root/readdress")
}

// apt installs and removes packages as an administrator would. The hosts have the packages' dependencies, and no access to
// the internet. Debian's daily update may hold apt's lock.
func apt(arguments string) string {
	return "DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 " + arguments
}

// try runs watari as a user of the lab's cluster.
func (l *lab) try(limit time.Duration, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	command := exec.CommandContext(ctx, watariBinary, arguments...)
	command.Env = append(os.Environ(), "WATARI_CONFIG="+l.config)
	out, err := command.CombinedOutput()
	return string(out), err
}

func (l *lab) must(limit time.Duration, arguments ...string) string {
	l.Helper()
	out, err := l.try(limit, arguments...)
	if err != nil {
		l.Fatalf("watari %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
	return out
}

// tryOn runs a script on a host.
func (l *lab) tryOn(host, script string) (string, error) {
	return l.try(15*time.Minute, "lab", "exec", "--name", l.name, host, "--", "sh", "-ec", script)
}

func (l *lab) on(host, script string) string {
	l.Helper()
	out, err := l.tryOn(host, script)
	if err != nil {
		l.Fatalf("on %s: %s: %v\n%s", host, script, err, out)
	}
	return out
}

// copy copies a file to a host's /root.
func (l *lab) copy(host, path, name string) {
	l.Helper()
	file, err := os.Open(path)
	if err != nil {
		l.Fatal(err)
	}
	defer file.Close()
	command := exec.Command(watariBinary, "lab", "exec", "--name", l.name, host, "--", "sh", "-c", "cat > /root/"+name)
	command.Stdin = file
	if out, err := command.CombinedOutput(); err != nil {
		l.Fatalf("copy %s to %s: %v\n%s", path, host, err, out)
	}
}

// files returns the files of a host's settings and state, except those of other daemons.
func (l *lab) files(host string) []string {
	l.Helper()
	return strings.Split(l.on(host, "find /etc /usr /var/lib/watari /var/cache/watari /run/watari -xdev "+
		"-not -path '*/__pycache__*' -not -path '/etc/libvirt/*' -not -path '/etc/apparmor.d/libvirt/*' 2>/dev/null || true"), "\n")
}

// login makes this machine's client config from the one on the manager's host.
func (l *lab) login(config, manager string) {
	l.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(config), &fields); err != nil {
		l.Fatalf("the manager's client config: %v: %s", err, config)
	}
	fields["manager"] = []string{manager}
	text, err := json.Marshal(fields)
	if err == nil {
		err = os.WriteFile(l.config, text, 0o600)
	}
	if err != nil {
		l.Fatal(err)
	}
}

// address returns a host's address on its site's LAN.
func (l *lab) address(host string) string {
	l.Helper()
	var status struct {
		Sites []struct {
			Hosts []struct{ Name, Address string }
		}
	}
	if out := l.must(time.Minute, "-o", "json", "lab", "status", "--name", l.name); json.Unmarshal([]byte(out), &status) != nil {
		l.Fatalf("the lab's status: %s", out)
	}
	for _, site := range status.Sites {
		for _, h := range site.Hosts {
			if h.Name == host {
				return h.Address
			}
		}
	}
	l.Fatalf("lab %s has no host %s", l.name, host)
	return ""
}

// hosts waits until both hosts are ready, with KVM.
func (l *lab) hosts() {
	l.Helper()
	var said string
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
		said = l.on("a1", "watari host list; watari host show a1; watari host show a2")
		if strings.Count(said, " ready ") == 2 && strings.Count(said, "KVM: ") == 2 {
			return
		}
	}
	l.Errorf("the hosts are not ready under KVM:\n%s", said)
}
