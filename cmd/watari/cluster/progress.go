package cluster

import (
	"fmt"
	"time"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
)

// startView shows the guests of a cluster while they start.
type startView struct {
	env   *cli.Env
	lines *progress.Lines
	begun time.Time
}

func newStartView(env *cli.Env) *startView {
	return &startView{env: env, lines: progress.New(env.Err), begun: env.Now()}
}

// show draws one line for the cluster and one for each guest.
func (v *startView) show(now *v1.WatchResponse) {
	cluster := now.GetCluster()
	name := cluster.GetMeta().GetName()
	head := fmt.Sprintf("cluster %s: %d of %d guests ready", name, cluster.GetReadyGuests(), cluster.GetSpec().GetGuests())
	if v.lines.Terminal() {
		head += ", " + output.Short(v.env.Now().Sub(v.begun))
	}
	if cluster.GetMessage() != "" && len(now.GetGuests()) == 0 { // otherwise the guests' lines show it
		head += " (" + cluster.GetMessage() + ")"
	}
	lines := []progress.Line{{Key: name, Text: head}}
	for _, guest := range now.GetGuests() {
		lines = append(lines, progress.Line{Key: guest.GetMeta().GetName(), Text: "  " + guestLine(guest)})
	}
	v.lines.Set(lines...)
}

func guestLine(guest *v1.Guest) string {
	text := guest.GetMeta().GetName() + ": " + output.State(guest.GetState())
	if guest.GetReady() {
		text = guest.GetMeta().GetName() + ": ready"
	}
	if guest.GetHost() != "" {
		text += " on " + guest.GetHost()
	}
	if guest.GetMessage() != "" && !guest.GetReady() {
		text += ": " + guest.GetMessage()
	}
	return text
}

func (v *startView) done(cluster *v1.Cluster) {
	v.lines.Clear()
	v.env.Notef("cluster %s is ready: %s on %s, after %s", cluster.GetMeta().GetName(),
		output.Count(int(cluster.GetReadyGuests()), "guest"), cluster.GetPrefix(), seconds(v.env.Now().Sub(v.begun)))
}

func seconds(d time.Duration) string {
	return output.Milliseconds(uint32(d.Milliseconds()))
}
