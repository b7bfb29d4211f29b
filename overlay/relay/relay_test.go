package relay

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/crypto/blake2s"
)

func keyOf(name string) (k Key) {
	copy(k[:], name)
	return k
}

// handshake makes a message that a relay takes for a handshake for a host.
func handshake(kind byte, to Key, text string) []byte {
	packet := make([]byte, map[byte]int{typeInitiation: sizeInitiation, typeResponse: sizeResponse}[kind])
	packet[0] = kind
	copy(packet[4:], text)
	c := newChecker(to)
	mac, _ := blake2s.New128(c.key[:])
	mac.Write(packet[:len(packet)-2*macSize])
	copy(packet[len(packet)-2*macSize:], mac.Sum(nil))
	return packet
}

func data(text string) []byte { return append([]byte{4, 0, 0, 0}, text...) }

// freePorts returns ports that were free just now.
func freePorts(t *testing.T, n int) (ports []uint16) {
	t.Helper()
	for range n {
		conn, err := net.ListenUDP("udp4", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ports = append(ports, uint16(conn.LocalAddr().(*net.UDPAddr).Port))
	}
	return ports
}

func open(t *testing.T, port uint16, name, file string) *Relay {
	t.Helper()
	r, err := Open(Config{Own: keyOf(name), Port: port, File: file, Log: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// end is a host of a pair.
type end struct {
	t    *testing.T
	conn *net.UDPConn
}

func newEnd(t *testing.T, port uint16) end {
	t.Helper()
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return end{t, conn}
}

func (e end) send(packet []byte) {
	e.t.Helper()
	if _, err := e.conn.Write(packet); err != nil {
		e.t.Fatal(err)
	}
}

// gets checks the next packet; nil: no packet comes.
func (e end) gets(want []byte) {
	e.t.Helper()
	wait := 5 * time.Second
	if want == nil {
		wait = 100 * time.Millisecond
	}
	e.conn.SetReadDeadline(time.Now().Add(wait))
	got := make([]byte, 2048)
	n, err := e.conn.Read(got)
	if want == nil && err == nil {
		e.t.Fatalf("it gets %q, want nothing", got[:n])
	}
	if want != nil && (err != nil || !bytes.Equal(got[:n], want)) {
		e.t.Fatalf("it gets %q, %v, want %q", got[:n], err, want)
	}
}

func TestPacketsPassBetweenTheTwoHostsOfAPair(t *testing.T) {
	ports, file := freePorts(t, 2), filepath.Join(t.TempDir(), "relay.json")
	r := open(t, ports[0], "r", file)
	pair := Pair{Port: ports[1], A: keyOf("a"), B: keyOf("b")}
	r.Set([]Pair{pair})
	a, b, stranger := newEnd(t, pair.Port), newEnd(t, pair.Port), newEnd(t, pair.Port)

	a.send(data("before a handshake"))
	a.send(handshake(typeInitiation, pair.B, "first")) // lost: b's address is not known yet
	b.send(handshake(typeInitiation, pair.A, "second"))
	a.gets(handshake(typeInitiation, pair.A, "second"))
	a.send(handshake(typeResponse, pair.B, "answer"))
	b.gets(handshake(typeResponse, pair.B, "answer"))
	for i := range 200 {
		a.send(data(fmt.Sprint("from a ", i)))
		b.gets(data(fmt.Sprint("from a ", i)))
	}
	b.send(data("from b"))
	a.gets(data("from b"))

	stranger.send(data("from a stranger"))
	stranger.send(handshake(typeInitiation, keyOf("c"), "for another host"))
	forged := handshake(typeInitiation, pair.B, "forged")
	forged[100] ^= 1
	stranger.send(forged)
	a.gets(nil)
	b.gets(nil)

	// A host with a new address is found again by its next handshake.
	moved := newEnd(t, pair.Port)
	moved.send(handshake(typeInitiation, pair.B, "from elsewhere"))
	b.gets(handshake(typeInitiation, pair.B, "from elsewhere"))
	b.send(data("to elsewhere"))
	moved.gets(data("to elsewhere"))

	// A new relay knows the addresses: packets pass without a handshake and without orders.
	r.Close()
	r = open(t, ports[0], "r", file)
	moved.send(data("after the relay has begun anew"))
	b.gets(data("after the relay has begun anew"))

	r.Set(nil)
	moved.send(data("after the pair has ended"))
	b.gets(nil)
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	ports := freePorts(t, 2)
	taken, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(ports[1])})
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, ports[0], "r", filepath.Join(t.TempDir(), "relay.json"))
	r.Set([]Pair{{Port: ports[1], A: keyOf("a"), B: keyOf("b")}})
	if p := r.Problems(); len(p) != 1 {
		t.Errorf("problems %q", p)
	}
	taken.Close()
	r.Set([]Pair{{Port: ports[1], A: keyOf("a"), B: keyOf("b")}})
	if p := r.Problems(); len(p) != 0 {
		t.Errorf("problems %q", p)
	}
}

func TestOnlyTheHostThatIsMeantAnswersAProbe(t *testing.T) {
	ports := freePorts(t, 2)
	a, b := open(t, ports[0], "a", filepath.Join(t.TempDir(), "a")), open(t, ports[1], "b", filepath.Join(t.TempDir(), "b"))
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), ports[1])
	a.Probe([]Target{{"b", at, keyOf("b")}, {"other", at, keyOf("other")}})
	for deadline := time.Now().Add(5 * time.Second); !a.Answers()["b"].Answers; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("b does not answer")
		}
	}
	if a.Answers()["other"].Answers {
		t.Error("b answers for another host")
	}
	begun := time.Now()
	a.mu.Lock()
	known := *a.targets["b"]
	a.mu.Unlock()
	if known.at(begun.Add(probeForget)).Answers {
		t.Error("an answer is believed for ever")
	}
	for at := begun; at.Before(begun.Add(probeSteady)); at = at.Add(probeAgain) {
		a.mu.Lock()
		a.targets["b"].asked = at
		number, key := a.targets["b"].number, tagOf(keyOf("b"))
		a.mu.Unlock()
		a.answered(number, key, at.Add(time.Millisecond))
	}
	a.mu.Lock()
	known = *a.targets["b"]
	a.mu.Unlock()
	if known.at(begun.Add(probeSteady/2)).Steady || !known.at(begun.Add(probeSteady+time.Second)).Steady {
		t.Errorf("steady %v and %v", known.at(begun.Add(probeSteady/2)), known.at(begun.Add(probeSteady+time.Second)))
	}
	b.Close()
}
