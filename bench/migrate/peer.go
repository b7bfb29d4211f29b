package main

// peer.go - the competitor: virsh migrate --live by hand, with Watari's own guest over the same tap and routes. socat
// carries its two sockets with TLS 1.3. The agents are stopped meanwhile and find everything unchanged.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"watari/bench/system"
)

// takeSocat installs socat on whole hosts, which have this machine's Debian release and no access to the internet.
func takeSocat(s *system.System) error {
	const folder = "build/bench-migrate"
	packages := []string{"socat", "libwrap0"}
	out, err := exec.Command("sh", append([]string{"-ec", `mkdir -p "$0"; cd "$0"; rm -f *.deb; apt-get download -q "$@"; cat *.deb >/dev/null`, folder}, packages...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fetch socat: %w: %s", err, out)
	}
	for _, host := range []string{"a1", "a2"} {
		for _, name := range packages {
			path, err := filepath.Glob(filepath.Join(folder, name+"_*.deb"))
			if err != nil || len(path) != 1 {
				return fmt.Errorf("fetch socat: %v is not one package %s", path, name)
			}
			file, err := os.Open(path[0])
			if err != nil {
				return err
			}
			err = s.WriteTo(host, file, "/root/"+name+".deb")
			file.Close()
			if err != nil {
				return err
			}
		}
		if _, err := s.OnHost(host, "dpkg -i /root/libwrap0.deb /root/socat.deb"); err != nil {
			return err
		}
	}
	return nil
}

// peerMoves moves a guest to another host and back.
func peerMoves(s *system.System, name string, away func(string) string) ([]window, error) {
	g, err := find(s, name)
	if err != nil {
		return nil, err
	}
	from, to := g.Host, away(g.Host)
	p := peer{s: s, domain: "watari-" + name, uid: g.Meta.UID, address: g.Address}
	if p.tap, err = s.OnHost(from, `virsh -c qemu:///system domiflist `+p.domain+` | awk '$2 == "ethernet" {printf $1}'`); err != nil {
		return nil, err
	}
	for _, host := range []string{from, to} {
		if _, err := s.OnHost(host, prepare(p)); err != nil {
			return nil, err
		}
	}
	defer func() {
		for _, host := range []string{from, to} {
			s.OnHost(host, `nft -f /tmp/ruleset; pkill socat || true; pkill -CONT -f '[w]atari-agent --manager'`)
		}
	}()
	var windows []window
	for _, way := range [][2]string{{from, to}, {to, from}} {
		w, err := p.move(way[0], way[1])
		if err != nil {
			return nil, err
		}
		windows = append(windows, w)
	}
	return windows, nil
}

// reached waits until the manager is connected to all agents and to a guest's agent.
func reached(s *system.System, name string) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		var hosts []struct{ State string }
		if err := s.JSON(&hosts, "host", "list"); err != nil {
			return err
		}
		g, err := find(s, name)
		if err != nil {
			return err
		}
		if g.Ready && !slices.ContainsFunc(hosts, func(h struct{ State string }) bool { return h.State != "HOST_STATE_READY" }) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the agents are not back after %v: %v, %v", patience, hosts, g)
		}
	}
}

type peer struct {
	s                         *system.System
	domain, uid, address, tap string
}

// socket is the path of the socket for the guest's memory, at a place where AppArmor lets QEMU make it.
func (p peer) socket() string { return "/run/libvirt/watari/m.tunnelmigrate.dest." + p.domain }

// prepare returns a script that stops the agent, opens the packet filter, and makes what a target needs if it is
// missing. The brackets keep the pattern from matching the shell itself.
func prepare(p peer) string {
	return fmt.Sprintf(`pkill -STOP -f '[w]atari-agent --manager'
(echo flush ruleset; nft list ruleset) > /tmp/ruleset; nft flush ruleset
mkdir -p /run/watari/guests/%[1]s /var/lib/watari/agent/guests/%[1]s /run/peer /run/libvirt/watari
chown libvirt-qemu: /run/libvirt/watari; chmod 700 /run/libvirt/watari
ip link show %[2]s >/dev/null 2>&1 || {
  ip tuntap add dev %[2]s mode tap vnet_hdr
  ip link set %[2]s address fe:77:61:74:61:72 mtu 1420 up
  ip address add 169.254.77.1/32 scope link dev %[2]s
  echo 1 > /proc/sys/net/ipv4/conf/%[2]s/forwarding
  echo 0 > /proc/sys/net/ipv4/conf/%[2]s/rp_filter
  ip neigh replace %[3]s lladdr $(printf '02:77:%%02x:%%02x:%%02x:%%02x' $(echo %[3]s | tr . ' ')) dev %[2]s nud permanent
}
[ -e /tmp/peer.pem ] || { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=peer -keyout /tmp/peer.pem -out /tmp/peer.crt 2>/dev/null; cat /tmp/peer.crt >> /tmp/peer.pem; }`,
		p.uid, p.tap, p.address)
}

func (p peer) move(from, to string) (window, error) {
	target, err := p.s.OnHost(to, `ip -4 -o addr show scope global | awk '$2 !~ /watari/ {split($4, a, "/"); printf a[1]; exit}'`)
	if err != nil {
		return window{}, err
	}
	tls := "cert=/tmp/peer.pem,verify=0,openssl-min-proto-version=TLS1.3"
	background := func(host, command string) error {
		_, err := p.s.OnHost(host, "setsid socat "+command+" >/dev/null 2>&1 </dev/null &")
		return err
	}
	for _, c := range [][2]string{
		{to, fmt.Sprintf("OPENSSL-LISTEN:7999,reuseaddr,fork,%s UNIX-CONNECT:/run/libvirt/libvirt-sock", tls)},
		{to, fmt.Sprintf("-b 262144 OPENSSL-LISTEN:7998,reuseaddr,fork,%s UNIX-CONNECT:%s", tls, p.socket())},
		{from, fmt.Sprintf("UNIX-LISTEN:/run/peer/libvirt.sock,unlink-early,fork OPENSSL:%s:7999,%s", target, tls)},
		{from, fmt.Sprintf("-b 262144 UNIX-LISTEN:%s,unlink-early,fork OPENSSL:%s:7998,%s", p.socket(), target, tls)},
	} {
		if err := background(c[0], c[1]); err != nil {
			return window{}, err
		}
	}
	time.Sleep(500 * time.Millisecond) // time for the listeners to start
	// Set the target's route first: it has no effect before the guest is there.
	if _, err := p.s.OnHost(to, fmt.Sprintf("ip route replace %s dev %s proto 119 metric 119", p.address, p.tap)); err != nil {
		return window{}, err
	}
	w := window{begin: time.Now()}
	// To a host of another site there is no such route; then only the total is of interest.
	_, err = p.s.OnHost(from, fmt.Sprintf(`virsh -q -c qemu:///system migrate --live --p2p --migrateuri unix://%s %s 'qemu+unix:///system?socket=/run/peer/libvirt.sock' || exit 1
ip route replace %s via %s proto 119 metric 119 || true`, p.socket(), p.domain, p.address, target))
	if err != nil {
		return w, err
	}
	w.end = time.Now()
	w.total = w.end.Sub(w.begin).Seconds()
	out, err := p.s.OnHost(to, "virsh -c qemu:///system domjobinfo --completed "+p.domain+" | awk '/^Total downtime:/ {print $3}'")
	if err != nil {
		return w, err
	}
	if w.downtime, err = strconv.ParseFloat(strings.TrimSpace(out), 64); err != nil {
		return w, fmt.Errorf("virsh's downtime: %w", err)
	}
	for _, host := range []string{from, to} {
		if _, err := p.s.OnHost(host, "pkill socat || true; rm -f "+p.socket()); err != nil {
			return w, err
		}
	}
	time.Sleep(1500 * time.Millisecond)
	return w, nil
}
