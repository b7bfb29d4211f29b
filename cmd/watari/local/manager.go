package local

// manager.go - starts this machine's manager and waits until it answers.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/client"
	"watari/cmd/internal/daemon"
)

// askTimeout is the timeout of one question to a manager that may just be starting.
const askTimeout = 3 * time.Second

// startManager starts this machine's manager and waits until it answers.
func (u *up) startManager(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	spec := u.manager()
	spec.Command = []string{self, "manager", "--state", filepath.Join(u.state, "manager"), "--listen", u.Listen}
	spec.Command = append(spec.Command, u.Outside.arguments()...)
	if u.Prefix != "" {
		spec.Command = append(spec.Command, "--prefix", u.Prefix)
	}
	if u.NoSharing {
		spec.Command = append(spec.Command, "--no-sharing")
	}
	if u.Secret != "" {
		spec.Command = append(spec.Command, "--authority-secret", u.Secret)
	}
	if u.AuditSyslog != "" {
		spec.Command = append(spec.Command, "--audit-syslog", u.AuditSyslog)
	}
	if u.Fence != "" {
		spec.Command = append(spec.Command, "--fence", u.Fence, "--fence-after", u.FenceAfter.String())
	}
	if u.Metrics {
		spec.Command = append(spec.Command, "--metrics", managerMetrics)
	}
	var version string
	await := func() (process *daemon.Process, began bool, err error) {
		if process, began, err = u.start(spec); err != nil {
			return nil, false, err
		}
		err = u.await(ctx, process, "starting the manager", func() (bool, string) {
			var err error
			version, err = u.ask(ctx)
			return err == nil, brief(err)
		})
		return process, began, err
	}
	process, began, err := await()
	if err != nil && process != nil && !began && process.Ended() && ctx.Err() == nil {
		process, began, err = await() // the daemon found was just ending
	}
	if err != nil {
		return err
	}
	if began {
		u.lines.Notef("manager %s runs%s, listening on %s; its log is %s", version, process.Number(), u.Listen, process.Log())
	} else {
		u.lines.Notef("the manager runs already%s", process.Number())
	}
	if u.state != defaultState {
		u.lines.Notef("the client config is %s: export WATARI_CONFIG=%[1]s", u.adminConfig())
	}
	return nil
}

// open returns a client of this machine's manager.
func (l layout) open() (*client.Client, error) {
	config, err := client.Load(l.adminConfig())
	if err != nil {
		return nil, err
	}
	return client.Open(config)
}

// ask asks this machine's manager for its version. The manager answers only when it leads.
func (u *up) ask(ctx context.Context) (string, error) {
	c, err := u.open()
	if err != nil {
		return "", err
	}
	defer c.HTTP().CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := c.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
	if err != nil {
		return "", err
	}
	return response.Msg.Version, nil
}

// brief returns why something is not ready, without a next step: the command waits anyway.
func brief(err error) string {
	if err == nil {
		return ""
	}
	if errors.Is(err, client.ErrNoConfig) {
		return "making its keys"
	}
	if unreachable := (*client.Unreachable)(nil); errors.As(err, &unreachable) {
		return "it does not listen yet"
	}
	text, _, _ := strings.Cut(client.Explain(err).Error(), ";")
	return text
}
