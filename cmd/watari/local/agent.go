package local

// agent.go - starts this machine's agent and waits until the manager knows it.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/cmd/internal/client"
	"watari/cmd/internal/daemon"
	"watari/cmd/internal/output"
)

// startAgent starts this machine's agent and waits until the manager knows it.
func (u *up) startAgent(ctx context.Context) error {
	spec := u.agent()
	if process, err := running(spec, u.lines.Notef); err != nil {
		return err
	} else if process != nil {
		u.lines.Notef("the agent runs already%s", process.Number())
		return u.awaitAgent(ctx, process, u.hasCertificate())
	}
	path, err := Program("watari-agent")
	if err != nil {
		return err
	}
	managers, err := u.admit(ctx)
	if err != nil {
		return err
	}
	spec.Command = []string{path, "--token-file", u.tokenFile(), "--state", u.agentState(),
		"--run", defaultRun, "--name", u.Name, "--libvirt", libvirtURI}
	for _, manager := range managers {
		spec.Command = append(spec.Command, "--manager", manager)
	}
	if u.LANAddress != "" { // otherwise the agent finds it, also when it changes
		spec.Command = append(spec.Command, "--lan-address", u.LANAddress)
	}
	if memory, err := u.memoryMiB(); err != nil {
		return err
	} else if memory > 0 {
		spec.Command = append(spec.Command, "--memory", strconv.FormatUint(memory, 10))
	}
	if u.AllowUnconfined {
		spec.Command = append(spec.Command, "--allow-unconfined")
	}
	if u.DialOnly {
		spec.Command = append(spec.Command, "--dial-only")
	}
	if u.Lent {
		spec.Command = append(spec.Command, "--lent")
	}
	if u.OwnerGuest != "" {
		spec.Command = append(spec.Command, "--owner-guest", u.OwnerGuest)
	}
	if u.Metrics {
		spec.Command = append(spec.Command, "--metrics", agentMetrics)
	}
	if rate, err := u.imageBandwidth(); err != nil {
		return err
	} else if rate > 0 {
		spec.Command = append(spec.Command, "--image-bandwidth", strconv.FormatUint(rate, 10))
	}
	if u.Site != "" {
		spec.Command = append(spec.Command, "--site", u.Site)
	}
	before := u.hasCertificate()
	process, err := daemon.Start(spec)
	if err != nil {
		return err
	}
	return u.awaitAgent(ctx, process, before)
}

// admit makes sure that the agent can join: it has a valid certificate or a token. It returns the managers' URLs.
func (u *up) admit(ctx context.Context) (managers []string, err error) {
	if u.Manager != "" {
		return u.managers(), u.admitElsewhere(ctx)
	}
	c, err := u.open()
	if err != nil {
		return nil, err
	}
	config, err := client.Load(u.adminConfig())
	if err != nil {
		return nil, err
	}
	known, err := c.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
	if err != nil {
		return nil, fmt.Errorf("ask the manager for host %s: %w", u.Name, err)
	}
	if i := slices.IndexFunc(known.Msg.Hosts, func(host *v1.Host) bool { return host.GetMeta().GetName() == u.Name }); i >= 0 {
		if u.hasCertificate() {
			return config.Managers, u.certifyAgain(ctx, c, known.Msg.Hosts[i])
		}
		if _, err := os.Stat(u.tokenFile()); err == nil { // of an earlier `up` that was killed
			return config.Managers, nil
		}
	}
	if u.hasCertificate() {
		if err := u.forgetCertificate(); err != nil { // the certificate of a host that was removed
			return nil, err
		}
	}
	response, err := c.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Site: u.Site}))
	if err != nil {
		return nil, fmt.Errorf("make a token for host %s: %w", u.Name, err)
	}
	return config.Managers, u.writeToken(response.Msg.Token)
}

// certifyAgain lets the agent get another certificate, if its certificate was revoked.
func (u *up) certifyAgain(ctx context.Context, c *client.Client, host *v1.Host) error {
	text, err := os.ReadFile(filepath.Join(u.agentPKI(), "certificate.pem"))
	if err != nil {
		return fmt.Errorf("read the agent's certificate: %w", err)
	}
	certificate, err := ca.ParseCertificate(text)
	if err != nil {
		return fmt.Errorf("read the agent's certificate: %w", err)
	}
	if id, err := ca.IdentityOf(certificate); err != nil || id.UID != host.GetMeta().GetUid() || id.Generation >= host.GetGeneration() {
		return err
	}
	response, err := c.RevokeHost(ctx, connect.NewRequest(&v1.RevokeHostRequest{Name: u.Name})) // for the token
	if err != nil {
		return fmt.Errorf("make a token for host %s: %w", u.Name, err)
	}
	if err := u.writeToken(response.Msg.Token); err != nil {
		return err
	}
	return u.forgetCertificate()
}

// hasCertificate reports whether the agent has ever joined. The agent makes its key before that.
func (l layout) hasCertificate() bool {
	_, err := os.Stat(filepath.Join(l.agentPKI(), "certificate.pem"))
	return err == nil
}

// forgetCertificate removes what makes others recognize the host. The agent makes new keys.
func (l layout) forgetCertificate() error {
	if err := errors.Join(os.RemoveAll(l.agentPKI()), os.RemoveAll(filepath.Join(l.agentState(), "wireguard.key"))); err != nil {
		return fmt.Errorf("remove the agent's old certificate and keys: %w", err)
	}
	return nil
}

func (l layout) writeToken(token string) error {
	if err := os.MkdirAll(filepath.Dir(l.tokenFile()), 0o755); err != nil {
		return fmt.Errorf("pass the token to the agent: %w", err)
	}
	if err := os.WriteFile(l.tokenFile(), []byte(token+"\n"), 0o600); err != nil {
		return fmt.Errorf("pass the token to the agent: %w", err)
	}
	return nil
}

// awaitAgent waits until the manager knows the agent. before says whether it knew the agent at an earlier start.
func (u *up) awaitAgent(ctx context.Context, process *daemon.Process, before bool) error {
	if u.Manager != "" {
		return u.awaitElsewhere(ctx, process, before)
	}
	var host *v1.Host
	err := u.await(ctx, process, "starting the agent", func() (bool, string) {
		found, err := u.host(ctx)
		host = found
		if err != nil {
			return false, brief(err)
		}
		cutOff := host.GetState() == v1.HostState_HOST_STATE_QUARANTINED
		return cutOff || host != nil && host.GetState() != v1.HostState_HOST_STATE_UNREACHABLE && host.GetInfo() != nil, "joining the manager"
	})
	if err != nil {
		return err
	}
	if host.GetState() == v1.HostState_HOST_STATE_QUARANTINED {
		return fmt.Errorf("host %s is quarantined: the manager refuses it, and the agent keeps trying; if you trust the host, `watari host quarantine %[1]s --undo` admits it, "+
			"otherwise `sudo watari down` ends the agent", u.Name)
	}
	_ = os.Remove(u.tokenFile()) // the token is used up
	info := host.GetInfo()
	u.lines.Notef("host %s of site %s is %s: %s, %s, %s; the agent runs%s, its log is %s", u.Name, info.GetSite(),
		output.State(host.GetState()), output.Count(int(info.GetCores()), "core"), output.Size(info.GetMemoryBytes()),
		acceleration(info.GetAcceleration()), process.Number(), process.Log())
	for _, problem := range host.GetProblems() {
		u.lines.Notef("host %s: %s", u.Name, problem)
	}
	return nil
}

// host asks this machine's manager for this host; nil if the manager does not know it yet.
func (u *up) host(ctx context.Context) (*v1.Host, error) {
	c, err := u.open()
	if err != nil {
		return nil, err
	}
	defer c.HTTP().CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := c.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
	if err != nil {
		return nil, err
	}
	for _, host := range response.Msg.Hosts {
		if host.GetMeta().GetName() == u.Name {
			return host, nil
		}
	}
	return nil, nil
}

func acceleration(a *v1.Acceleration) string {
	switch a.GetKind() {
	case v1.AccelerationKind_ACCELERATION_KIND_KVM:
		return "KVM"
	case v1.AccelerationKind_ACCELERATION_KIND_TCG:
		return "emulated CPUs (" + a.GetReason() + ")"
	}
	return "acceleration not known yet"
}
