package agent

// identity.go - puts an identity in force: names, users, certificates, files for MPI.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

var (
	validName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	validUser = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
)

// checked is an identity with parsed fields.
type checked struct {
	*v1.Identity
	address, gateway netip.Addr
	mac, gatewayMAC  net.HardwareAddr
}

// check parses an identity, and refuses one with missing or invalid fields.
func check(i *v1.Identity) (checked, error) {
	c := checked{Identity: i}
	if i.GetUser() == "" {
		i.User = "watari"
	}
	if i.GetUid() == 0 {
		i.Uid = 1000
	}
	var problems []error
	note := func(what string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", what, err))
		}
	}
	match := func(what, text string, pattern *regexp.Regexp) {
		if !pattern.MatchString(text) {
			note(what, fmt.Errorf("%q does not match %v", text, pattern))
		}
	}
	match("name", i.GetName(), validName)
	match("user", i.GetUser(), validUser)
	for _, p := range i.GetPeers() {
		match("peer's name", p.GetName(), validName)
		_, err := netip.ParseAddr(p.GetAddress())
		note("address of peer "+p.GetName(), err)
	}
	var err error
	c.address, err = netip.ParseAddr(i.GetAddress())
	note("address", err)
	if i.GetGateway() != "" {
		c.gateway, err = netip.ParseAddr(i.GetGateway())
		note("gateway", err)
		c.gatewayMAC, err = net.ParseMAC(i.GetGatewayMac())
		note("gateway's MAC address", err)
	}
	if i.GetMac() != "" {
		c.mac, err = net.ParseMAC(i.GetMac())
		note("MAC address", err)
	}
	return c, errors.Join(problems...)
}

// identify gives the guest an identity. It only changes what differs from the present identity. now returns the time to which the
// clock is set; nil: it is not set.
func (a *Agent) identify(ctx context.Context, i *v1.Identity, now func() *timestamppb.Timestamp) error {
	a.identifying.Lock()
	defer a.identifying.Unlock()
	c, err := check(i)
	if err != nil {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("identity: %w", err))
	}
	old := a.current()
	if old.GetGuestUid() == i.GetGuestUid() && i.GetEpoch() < old.GetEpoch() {
		return connect.NewError(connect.CodeFailedPrecondition,
			fmt.Errorf("identity is of epoch %d, the guest has that of epoch %d", i.GetEpoch(), old.GetEpoch()))
	}
	if now := now(); now.IsValid() && now != nil {
		if _, err := setClock(now.AsTime()); err != nil {
			return connect.NewError(connect.CodeInternal, err)
		}
	}
	if err := creditEntropy(i.GetEntropy()); err != nil {
		return connect.NewError(connect.CodeInternal, err)
	}
	if old == nil {
		scatterProcessIDs()
	}
	i.Entropy = nil // each request has new bytes, and nothing needs the old ones
	if old != nil && proto.Equal(old, i) {
		return nil
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"set up the network", func() error { return configureNetwork(c) }},
		{"give it a boot id", func() error { return giveBootID(filepath.Join(a.runDirectory, "boot-id")) }},
		{"write system files", func() error { return writeSystemFiles("/", c) }},
		{"make user " + i.GetUser(), func() error { return makeUser("/", i.GetUser(), i.GetUid()) }},
		{"write cluster files", func() error { return a.writeClusterFiles(c) }},
		{"make the home", func() error { a.home.server.setEpoch(i.GetEpoch()); return a.home.want(c) }},
		{"mount storage", func() error { return a.storage.want(c) }},
		{"answer other guests", func() error { return a.overlay.use(c) }},
	} {
		if err := step.do(); err != nil {
			return connect.NewError(connect.CodeInternal, fmt.Errorf("%s: %w", step.what, err))
		}
	}
	if err := a.keepIdentity(i); err != nil {
		return connect.NewError(connect.CodeInternal, fmt.Errorf("keep the identity: %w", err))
	}
	a.mu.Lock()
	a.identity = i
	a.mu.Unlock()
	if old.GetGuestUid() != i.GetGuestUid() {
		go a.startSSH()
	}
	a.log.Info("identified", "name", i.GetName(), "address", i.GetAddress(), "epoch", i.GetEpoch())
	return nil
}

// identityFile is the path of the identity, from which a restarted agent resumes. It lies beside the keys.
func (a *Agent) identityFile() string { return filepath.Join(a.runDirectory, "pki", "identity") }

func (a *Agent) keepIdentity(i *v1.Identity) error {
	text, err := proto.Marshal(i)
	if err != nil {
		return err
	}
	return writeFile(a.identityFile(), text, 0o600)
}

// resume restores the identity of an earlier agent. Network, files and home are still in place. resume makes again what
// ended with that agent.
func (a *Agent) resume() error {
	text, err := os.ReadFile(a.identityFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	i := &v1.Identity{}
	if err == nil {
		err = proto.Unmarshal(text, i)
	}
	if err != nil {
		return err
	}
	c, err := check(i)
	if err != nil {
		return err
	}
	a.home.server.setEpoch(i.GetEpoch())
	a.home.resume(c)
	if err := a.storage.want(c); err != nil {
		a.log.Error("take up the storage of before", "error", err)
	}
	if err := a.answer(c); err != nil {
		return err
	}
	if !signalServer(0) { // the earlier agent ended before the server had started
		go a.startSSH()
	}
	a.log.Info("identity of before taken up", "name", i.GetName(), "epoch", i.GetEpoch())
	return nil
}

// answer begins to serve other guests under an identity. It changes nothing of the machine.
func (a *Agent) answer(c checked) error {
	if err := a.overlay.use(c); err != nil {
		return err
	}
	a.mu.Lock()
	a.identity = c.Identity
	a.mu.Unlock()
	return nil
}

// StandIn serves other guests under an identity from a machine that has the identity's address. It is for tests with
// more guests than machines.
func (a *Agent) StandIn(i *v1.Identity) error {
	c, err := check(i)
	if err != nil {
		return err
	}
	return a.answer(c)
}

// writeClusterFiles writes the agent's keys, and the lists of guests that launchers read.
func (a *Agent) writeClusterFiles(c checked) error {
	pki := filepath.Join(a.runDirectory, "pki")
	if err := os.MkdirAll(pki, 0o700); err != nil {
		return err
	}
	for _, f := range []struct {
		path string
		mode os.FileMode
		text []byte
	}{
		{filepath.Join(pki, "ca.pem"), 0o600, c.GetCaCertificate()},
		{filepath.Join(pki, "certificate.pem"), 0o600, c.GetCertificate()},
		{filepath.Join(pki, "key.pem"), 0o600, c.GetKey()},
		{filepath.Join(a.runDirectory, "hostfile"), 0o644, hostfile("%s slots=%d\n", c.GetPeers())},
		{filepath.Join(a.runDirectory, "hostfile.hydra"), 0o644, hostfile("%s:%d\n", c.GetPeers())},
	} {
		if err := writeFile(f.path, f.text, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// hostfile returns the list of peers and their slots, for a launcher that reads lines of this format.
func hostfile(line string, peers []*v1.Peer) []byte {
	var b []byte
	for _, p := range peers {
		b = fmt.Appendf(b, line, p.GetName(), max(p.GetSlots(), 1))
	}
	return b
}

// writeFile replaces a file atomically. It writes nothing if the file is like that already: the file system may be full.
func writeFile(path string, text []byte, mode os.FileMode) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
		if info, err := os.Lstat(path); err == nil && info.Mode() == mode {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary := path + ".watari-new"
	if err := os.WriteFile(temporary, text, mode); err != nil {
		return err
	}
	if err := os.Chmod(temporary, mode); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}

// clockSlack is the error of a clock below which it is not set.
const clockSlack = 50 * time.Millisecond
