package migrate

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
)

func newShow(env *cli.Env) *cobra.Command {
	return cli.Show[*v1.Migration]{Word: "MIGRATION|GUEST", Short: "Show a migration, or a guest's latest",
		Example: "  watari migrate show md-2\n  watari migrate show md-2 -o json | jq .downtimeMs", Names: cli.Guests, Get: get, Describe: describe}.Command(env)
}

// downtime returns how long the guest was paused, and its two parts: until the target had all memory, and until it resumed
// the guest.
func downtime(m *v1.Migration) string {
	text, sending := output.Milliseconds(m.GetDowntimeMs()), m.GetSendingMs()
	if sending == 0 {
		return text
	}
	return fmt.Sprintf("%s (%s sending, %s hand-over)", text, output.Milliseconds(sending), output.Milliseconds(m.GetDowntimeMs()-sending))
}

func describe(w io.Writer, env *cli.Env, m *v1.Migration) {
	limit, total, stopped := "none", "", ""
	if m.GetBandwidthBytes() > 0 {
		limit = output.Size(m.GetBandwidthBytes()) + "/s"
	}
	if m.GetState() == v1.MigrationState_MIGRATION_STATE_DONE {
		total, stopped = output.Milliseconds(m.GetTotalMs()), downtime(m)
	}
	output.Fields(w,
		[2]string{"name", m.GetMeta().GetName()},
		[2]string{"guest", m.GetGuest()},
		[2]string{"from", fmt.Sprintf("%s, epoch %d", m.GetSource(), m.GetSourceEpoch())},
		[2]string{"to", fmt.Sprintf("%s, epoch %d", m.GetTarget(), m.GetTargetEpoch())},
		[2]string{"state", output.State(m.GetState())},
		[2]string{"message", m.GetMessage()},
		[2]string{"reason", m.GetReason()},
		[2]string{"policy", m.GetPolicy()},
		[2]string{"bandwidth limit", limit},
		[2]string{"memory", output.Size(m.GetProgress().GetTotalBytes())},
		[2]string{"remaining", output.Size(m.GetProgress().GetRemainingBytes())},
		[2]string{"sent", output.Size(sent(m))},
		[2]string{"passes", fmt.Sprint(m.GetProgress().GetIteration())},
		[2]string{"total", total},
		[2]string{"downtime", stopped},
		[2]string{"age", output.Age(env.Now(), m.GetMeta().GetCreated())},
	)
}
