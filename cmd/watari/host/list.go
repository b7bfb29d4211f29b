package host

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newList(env *cli.Env) *cobra.Command {
	return cli.List[*v1.Host]{Things: "hosts", Short: "List the hosts", Example: "  watari host list\n  watari host list -o json",
		Get: func(ctx context.Context, c *client.Client) ([]*v1.Host, error) {
			return client.List(ctx, c.ListHosts, &v1.ListHostsRequest{}, (*v1.ListHostsResponse).GetHosts)
		},
		Table: table}.Command(env)
}

func table(w io.Writer, env *cli.Env, hosts []*v1.Host) {
	if len(hosts) == 0 {
		env.Notef("there are no hosts; make this machine a host with `sudo watari up`, or another machine with a token from `watari token create --host`")
		return
	}
	t := output.NewTable("NAME", "SITE", "STATE", "CORES", "BUSY", "MEMORY", "FREE", "ACCEL", "GUESTS", "AGENT")
	for _, h := range hosts {
		info, load := h.GetInfo(), h.GetLoad()
		busy, free, agent := "", "", ""
		if load != nil {
			busy, free = fmt.Sprintf("%.1f", load.GetCpuBusy()), output.Size(load.GetMemoryAvailableBytes())
		}
		if h.GetState() == v1.HostState_HOST_STATE_UNREACHABLE {
			agent = "away"
			if h.GetLastSeen() != nil {
				agent = "away for " + output.Age(env.Now(), h.GetLastSeen())
			}
		}
		if len(h.GetRelayed()) > 0 && agent == "" {
			agent = "relayed" // or it relays; `watari host show` shows which
		}
		t.Row(h.GetMeta().GetName(), info.GetSite(), output.State(h.GetState()), fmt.Sprint(info.GetCores()), busy,
			output.Size(info.GetMemoryBytes()), free, strings.ToUpper(output.State(info.GetAcceleration().GetKind())),
			fmt.Sprint(len(h.GetGuests())), agent)
	}
	t.Write(w)
}
