package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
	"watari/migration"
)

// follow shows a migration until it has ended. The first signal cancels the migration, the second ends the command.
func follow(ctx context.Context, env *cli.Env, c *client.Client, begun *v1.Migration) (end *v1.Migration, cancelled bool, err error) {
	name, guest := begun.GetMeta().GetName(), begun.GetGuest()
	lines := progress.New(env.Err)
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	updates := make(chan progress.Line)
	var last *v1.Migration
	ended := make(chan error, 1)
	send := func(line progress.Line) {
		select {
		case updates <- line:
		case <-ctx.Done():
		}
	}
	go func() {
		trouble := func(err error) {
			send(progress.Line{Key: "manager", Text: "waiting for the manager: " + client.Brief(err)})
		}
		ended <- c.Watch(ctx, "migration", name, trouble, func(now *v1.WatchResponse) (bool, error) {
			if now.Gone {
				return false, errors.New("its record is gone; `watari guest show " + guest + "` says where the guest is")
			}
			last = now.Migration
			send(progress.Line{Key: name, Text: line(lines, last)})
			return migration.Ended(last.GetState()), nil
		})
	}()
	signals := 0
	for {
		select {
		case line := <-updates:
			lines.Set(line)
		case <-env.Signals:
			if signals++; signals > 1 {
				leave(cli.ErrInterrupted)
				continue
			}
			lines.Notef("cancelling; Ctrl-C again exits without waiting until guest %s continues at %s", guest, begun.GetSource())
			go cancelSoon(ctx, c, name, send)
		case err := <-ended:
			if errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
				lines.Keep()
				return nil, true, cli.Interruptedf("stopped waiting: migration %s is being cancelled; guest %s continues at %s or, if that is too late, at %s; see `watari migrate show %s`",
					name, guest, begun.GetSource(), begun.GetTarget(), name)
			}
			lines.Clear()
			if err != nil {
				return nil, false, fmt.Errorf("watch migration %s: %w", name, err)
			}
			return last, signals > 0, nil
		}
	}
}

// cancelSoon cancels a migration. It retries if the manager is restarting.
func cancelSoon(ctx context.Context, c *client.Client, name string, send func(progress.Line)) {
	err := c.Patiently(ctx, nil, func(func()) error {
		_, err := c.CancelMigration(ctx, connect.NewRequest(&v1.CancelMigrationRequest{Name: name}))
		return err
	})
	if err != nil && ctx.Err() == nil {
		send(progress.Line{Key: "cancel", Text: "cannot cancel: " + client.Explain(err).Error()})
	}
}

// line describes the state of a migration.
func line(lines *progress.Lines, m *v1.Migration) string {
	head := fmt.Sprintf("%s: %s to %s: ", m.GetGuest(), m.GetSource(), m.GetTarget())
	p := m.GetProgress()
	if m.GetState() != v1.MigrationState_MIGRATION_STATE_TRANSFERRING || p.GetTotalBytes() == 0 {
		text := head + doing(m.GetState())
		if m.GetMessage() != "" && m.GetState() != v1.MigrationState_MIGRATION_STATE_TRANSFERRING {
			text += " (" + m.GetMessage() + ")"
		}
		return text
	}
	done := p.GetTotalBytes() - min(p.GetRemainingBytes(), p.GetTotalBytes())
	text := head + lines.Bar(done, p.GetTotalBytes())
	if p.GetIteration() > 1 {
		text += fmt.Sprintf(", pass %d over what the guest has changed", p.GetIteration())
	}
	return text
}

// doing describes what happens in a state.
func doing(state v1.MigrationState) string {
	switch state {
	case v1.MigrationState_MIGRATION_STATE_PENDING:
		return "waiting for its turn"
	case v1.MigrationState_MIGRATION_STATE_RESERVING:
		return "the target makes room"
	case v1.MigrationState_MIGRATION_STATE_TRANSFERRING:
		return "sending memory"
	case v1.MigrationState_MIGRATION_STATE_SWITCHING:
		return "setting routes"
	case v1.MigrationState_MIGRATION_STATE_RESUMING:
		return "resuming at the target"
	case v1.MigrationState_MIGRATION_STATE_ROLLING_BACK:
		return "going back to the source"
	}
	return output.State(state)
}

// report prints how a migration ended.
func report(env *cli.Env, m *v1.Migration, interrupted bool) error {
	name, guest := m.GetMeta().GetName(), m.GetGuest()
	err := env.Show(m, func(w io.Writer) {
		if m.GetState() == v1.MigrationState_MIGRATION_STATE_DONE {
			fmt.Fprintf(w, "%s moved from %s to %s: total %s, downtime %s, %s sent\n", guest, m.GetSource(), m.GetTarget(),
				output.Milliseconds(m.GetTotalMs()), downtime(m), output.Size(sent(m)))
		}
	})
	switch m.GetState() {
	case v1.MigrationState_MIGRATION_STATE_DONE:
		return err
	case v1.MigrationState_MIGRATION_STATE_CANCELLED:
		status := cli.StatusFailed
		if interrupted {
			status = cli.StatusInterrupted
		}
		return &cli.Exit{Code: status, Err: fmt.Errorf("migration %s was cancelled; guest %s goes on at %s", name, guest, m.GetSource())}
	}
	return &cli.Exit{Code: cli.StatusFailed, Err: fmt.Errorf("migration %s of guest %s from %s to %s failed: %s; `watari guest show %s` says where the guest is",
		name, guest, m.GetSource(), m.GetTarget(), m.GetMessage(), guest)}
}

// sent returns how many bytes were sent over the network.
func sent(m *v1.Migration) uint64 {
	if bytes := m.GetProgress().GetTransferredBytes(); bytes > 0 {
		return bytes
	}
	return m.GetProgress().GetProcessedBytes()
}
