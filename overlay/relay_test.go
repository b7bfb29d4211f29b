// relay_test.go runs the overlay on hosts that only dial out. The router translates the addresses of a1 and b1 towards the
// other site, and passes only answers to their packets.
package overlay_test

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
	"watari/internal/nethost"
)

const relayPort = 7073

// newDialOnlyWorld makes a world in which the named hosts only dial out.
func newDialOnlyWorld(t *testing.T, dialOnly ...string) *world {
	w := newWorld(t)
	for name, h := range w.hosts {
		h.RelayPort = relayPort
		key, err := h.StartAgent()
		w.must(err)
		if key != w.keys[name] {
			t.Fatalf("host %s has another key", name)
		}
	}
	rules := []string{"add table ip t", "add chain ip t out { type nat hook postrouting priority srcnat; }",
		"add chain ip t in { type filter hook forward priority filter; }"}
	for _, name := range dialOnly {
		address, outside := w.hosts[name].Address.String(), map[string]string{"a": "lanb", "b": "lana"}[site(name)]
		rules = append(rules, "add rule ip t out oifname "+outside+" ip saddr "+address+" masquerade",
			"add rule ip t in iifname "+outside+" ip daddr "+address+" ct direction original drop")
	}
	command := w.router.Command(t.Context(), "nft", "-f", "-")
	command.Stdin = strings.NewReader(strings.Join(rules, "\n") + "\n")
	if out, err := command.CombinedOutput(); err != nil {
		t.Skipf("this kernel does not translate addresses: %v: %s", err, out)
	}
	return w
}

// send sends orders to a host, after change.
func (w *world) send(host string, change func(n *v1.NetworkWanted, peers map[string]*v1.PeerHost)) {
	w.t.Helper()
	w.generation++
	n, local := w.wanted(host)
	peers := map[string]*v1.PeerHost{}
	for _, p := range n.Peers {
		p.Keepalive = !p.SameSite
		peers[p.Name] = p
	}
	if change != nil {
		change(n, peers)
	}
	_, err := w.hosts[host].Apply(n, local...)
	w.must(err)
}

func (w *world) eventually(limit time.Duration, what string, is func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(limit); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			for name, h := range w.hosts {
				state, _ := h.Run(w.t.Context(), "sh", "-c", "wg show; cat /run/watari/wireguard.log /run/watari/relay.json; ip -6 addr show dev watari0")
				w.t.Logf("%s:\n%s", name, state)
			}
			w.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// path returns what a host knows of its path to another host.
func (w *world) path(host, other string) nethost.Path {
	w.t.Helper()
	p, err := w.hosts[host].Path(other)
	w.must(err)
	return p
}

// tunnelPasses sends a line from one host to another inside WireGuard.
func (w *world) tunnelPasses(from, to string, port int, patience time.Duration) error {
	var listener net.Listener
	w.must(w.hosts[to].In(func() (err error) {
		listener, err = net.Listen("tcp6", fmt.Sprintf(":%d", port))
		return err
	}))
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("hello"))
			conn.Close()
		}
	}()
	inside := w.path(from, to).Inside
	return w.hosts[from].In(func() error {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(inside.String(), fmt.Sprint(port)), patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		text, err := io.ReadAll(conn)
		if err == nil && string(text) != "hello" {
			err = fmt.Errorf("it says %q", text)
		}
		return err
	})
}

// An administrator turns IPv6 off everywhere, or somebody sets the device down and up.
func TestAHostGetsItsAddressInsideWireGuardAgain(t *testing.T) {
	w := newWorld(t)
	w.guest(1, 0, "a1")
	w.guest(1, 1, "b1")
	w.apply()
	h := w.hosts["a1"]
	if err := w.tunnelPasses("b1", "a1", 7071, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, commands := range [][]string{{"sysctl -qw net.ipv6.conf.all.disable_ipv6=1"}, {"ip link set watari0 down", "ip link set watari0 up"}, {"ip -6 addr flush dev watari0"}} {
		w.must(h.Script(t.Context(), commands...))
		if out, err := h.Run(t.Context(), "ip", "-6", "addr", "show", "dev", "watari0"); err != nil || strings.Contains(out, "fd77:") {
			t.Errorf("%q: the address is not lost: %s, %v", commands, out, err)
		}
		if problems, err := h.Check(); err != nil || len(problems) > 0 {
			t.Errorf("%q: problems %q, error %v", commands, problems, err)
		}
		if err := w.tunnelPasses("b1", "a1", 7071, 10*time.Second); err != nil {
			t.Errorf("after %q and a check: %v", commands, err)
		}
	}
}

// A peer has roamed, and answers there no more. It is sought at its own address again, without new orders.
func TestASilentHostIsSoughtAtItsOwnAddress(t *testing.T) {
	w := newWorld(t)
	h := w.hosts["a1"]
	h.RelayPort = relayPort // so that the agent watches
	_, err := h.StartAgent()
	w.must(err)
	w.guest(1, 0, "a1")
	w.guest(1, 1, "b1")
	w.apply("a1") // b1 has no orders, so there is never a handshake
	ask := func(text string) string {
		t.Helper()
		out, err := h.Run(t.Context(), "perl", "-MIO::Socket::UNIX", "-e", `$s = IO::Socket::UNIX->new("/var/run/wireguard/watari0.sock") or exit 3; `+
			`print $s shift; $s->flush; while (<$s>) { last if /^$/; print }`, text)
		if err != nil && strings.Contains(err.Error(), "exit status 3") {
			t.Skip("the kernel has WireGuard: no socket to change an endpoint at")
		}
		w.must(err)
		return out
	}
	state := ask("get=1\n\n")
	key := regexp.MustCompile(`public_key=([0-9a-f]+)\n`).FindStringSubmatch(state)
	if key == nil || !strings.Contains(state, "endpoint=198.18.2.1:7072") {
		t.Fatalf("the device has %s", state)
	}
	ask("set=1\npublic_key=" + key[1] + "\nupdate_only=true\nendpoint=198.18.2.99:9\n\n")
	if state := ask("get=1\n\n"); !strings.Contains(state, "endpoint=198.18.2.99:9") && !strings.Contains(state, "endpoint=198.18.2.1:7072") {
		t.Errorf("the device has %s", state)
	}
	w.eventually(20*time.Second, "the peer is sought at its own address", func() bool { return strings.Contains(ask("get=1\n\n"), "endpoint=198.18.2.1:7072") })
}

func TestAHostThatOnlyDialsOutIsReachedByKeepalives(t *testing.T) {
	w := newDialOnlyWorld(t, "b1")
	a, b := w.guest(1, 0, "a1"), w.guest(1, 1, "b1")
	for _, h := range []string{"a1", "a2", "b1"} {
		w.send(h, func(_ *v1.NetworkWanted, peers map[string]*v1.PeerHost) {
			if p := peers["b1"]; p != nil {
				p.DialOnly = true
			}
		})
	}
	w.eventually(10*time.Second, "a1 and b1 hear each other", func() bool {
		return w.path("a1", "b1").State == v1.PathState_PATH_STATE_ANSWERS && w.path("b1", "a1").State == v1.PathState_PATH_STATE_ANSWERS
	})
	w.reaches(a, b, largest)
	w.must(w.tunnelPasses("a1", "b1", 7071, 10*time.Second))
	if err := w.tunnelPasses("a1", "b1", 7999, 2*time.Second); err == nil {
		t.Error("a host reaches another port than the tunnel's inside WireGuard")
	}
}

func TestARelayJoinsHostsThatOnlyDialOut(t *testing.T) {
	w := newDialOnlyWorld(t, "a1", "b1")
	a, b := w.guest(1, 0, "a1"), w.guest(1, 1, "b1")
	probes := func(n *v1.NetworkWanted, hosts ...string) {
		for _, host := range hosts {
			n.Probes = append(n.Probes, &v1.Probe{Host: host, Address: fmt.Sprintf("%s:%d", w.hosts[host].Address, relayPort), PublicKey: w.keys[host]})
		}
	}
	w.send("a2", nil)
	w.send("a1", func(n *v1.NetworkWanted, _ map[string]*v1.PeerHost) { probes(n, "a2", "b1") })
	w.send("b1", func(n *v1.NetworkWanted, _ map[string]*v1.PeerHost) { probes(n, "a1", "a2") })
	w.eventually(5*time.Second, "a1 and b1 find that a2 answers", func() bool { return w.path("a1", "a2").Answers && w.path("b1", "a2").Answers })
	w.cannotReach(a, b.Address.String())
	for _, pair := range [][2]string{{"a1", "b1"}, {"b1", "a1"}} {
		if p := w.path(pair[0], pair[1]); p.Answers || p.State == v1.PathState_PATH_STATE_ANSWERS {
			t.Errorf("%s hears %s: %+v", pair[0], pair[1], p)
		}
	}

	const port = relayPort + 1
	w.send("a2", func(n *v1.NetworkWanted, _ map[string]*v1.PeerHost) {
		n.Relayed = []*v1.Relayed{{Port: port, APublicKey: w.keys["a1"], BPublicKey: w.keys["b1"]}}
	})
	relayed := func(peers map[string]*v1.PeerHost, other string) {
		peers[other].Relay, peers[other].RelayAddress = "a2", fmt.Sprintf("%s:%d", w.hosts["a2"].Address, port)
	}
	begun := time.Now()
	w.send("a1", func(_ *v1.NetworkWanted, peers map[string]*v1.PeerHost) { relayed(peers, "b1") })
	w.send("b1", func(_ *v1.NetworkWanted, peers map[string]*v1.PeerHost) { relayed(peers, "a1") })
	w.eventually(10*time.Second, "a1 and b1 hear each other through a2", func() bool {
		return w.path("a1", "b1").State == v1.PathState_PATH_STATE_ANSWERS && w.path("b1", "a1").State == v1.PathState_PATH_STATE_ANSWERS
	})
	t.Logf("relayed after %v", time.Since(begun).Round(10*time.Millisecond))
	w.reaches(a, b, largest)
	w.must(w.tunnelPasses("a1", "b1", 7071, 10*time.Second))
	w.must(w.tunnelPasses("b1", "a1", 7071, 10*time.Second))

	// A restarted agent of the relay continues without orders.
	begun = time.Now()
	_, err := w.hosts["a2"].StartAgent()
	w.must(err)
	w.eventually(10*time.Second, "a new agent relays", func() bool { return a.Ping(t.Context(), b.Address, 1, 56) == nil })
	t.Logf("relayed again %v after the relay's agent was started anew", time.Since(begun).Round(10*time.Millisecond))
}
