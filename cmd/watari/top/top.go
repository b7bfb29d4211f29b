// Package top implements `watari top`: a live view of who uses the hosts.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

// New makes the command.
func New(env *cli.Env) *cobra.Command {
	var once bool
	command := &cobra.Command{
		Use:   "top",
		Short: "Show who uses the hosts, as it happens: guests, owners, the system",
		Long: "Show for each host what guests, the owner and the system use of its processors, and when the owner was last there; for\n" +
			"each guest its processor time, memory and traffic, and moves under way. Behind a host that a policy\n" +
			"keeps guests from stands which policy does so, and for how long. The picture is renewed every second.\n\n" +
			"Keys: up, down, page up, page down to scroll; g hides and shows guests; p shows the runs under way; q ends. Of a run that is\n" +
			"chosen with up, down and enter, the processes in all guests are shown, as `watari run processes` lists them, until esc closes them.\n\n" +
			"If the output is not a terminal, or with --once, the picture is printed once.",
		Example:           "  watari top\n  watari top --once\n  watari host list -o json | jq '.[].sample'",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			width, height := cli.Terminal(env.Out)
			if once || width == 0 || (env.Output != "" && env.Output != "table") {
				p, err := look(ctx, env, c)
				if err != nil {
					return err
				}
				return cli.ShowList(env, p.hosts, func(w io.Writer) { fmt.Fprint(w, draw(&p, nil, 0)) })
			}
			return follow(ctx, env, c, width, height)
		}),
	}
	command.Flags().BoolVar(&once, "once", false, "print the picture once")
	return command
}

// picture is the manager's answer at one moment.
type picture struct {
	at      time.Time
	hosts   []*v1.Host
	guests  []*v1.Guest
	on      map[string][]*v1.Guest     // the guests by their host's name
	moves   map[string]*v1.Migration   // under way, by the guest's name
	samples map[string]*v1.GuestSample // by uid
}

func look(ctx context.Context, env *cli.Env, c *client.Client) (picture, error) {
	hosts, err := client.List(ctx, c.ListHosts, &v1.ListHostsRequest{}, (*v1.ListHostsResponse).GetHosts)
	if err != nil {
		return picture{}, fmt.Errorf("list hosts: %w", err)
	}
	guests, err := client.List(ctx, c.ListGuests, &v1.ListGuestsRequest{}, (*v1.ListGuestsResponse).GetGuests)
	if err != nil {
		return picture{}, fmt.Errorf("list guests: %w", err)
	}
	moves, err := client.List(ctx, c.ListMigrations, &v1.ListMigrationsRequest{}, (*v1.ListMigrationsResponse).GetMigrations)
	if err != nil {
		return picture{}, fmt.Errorf("list moves: %w", err)
	}
	return newPicture(env.Now(), hosts, guests, moves), nil
}

// question asks the manager what a view shows.
func question(ctx context.Context, env *cli.Env, c *client.Client, v *view) answer {
	a := answer{to: v}
	if v.run == "" {
		runs, err := client.List(ctx, c.ListRuns, &v1.ListRunsRequest{}, (*v1.ListRunsResponse).GetRuns)
		a.runs, a.err = running(runs), err
	} else {
		a.guests, a.err = client.List(ctx, c.RunProcesses, &v1.RunProcessesRequest{Name: v.run}, (*v1.RunProcessesResponse).GetGuests)
	}
	a.at = env.Now()
	return a
}

// mostPast is for how many hosts and guests the past is asked.
const mostPast = 100

// past asks the manager what hosts and guests have used before the first picture. What it cannot learn is left out.
func past(ctx context.Context, c *client.Client, p picture) history {
	var calls errgroup.Group
	calls.SetLimit(8)
	var mu sync.Mutex
	h, left := history{}, mostPast
	ask := func(name string, request *v1.UsageRequest, values func(*v1.UsageResponse) []float64) {
		if left--; left < 0 {
			return
		}
		request.Since = timestamppb.New(p.at.Add(-stripLength * every))
		calls.Go(func() error {
			if response, err := c.Usage(ctx, connect.NewRequest(request)); err == nil {
				mu.Lock()
				defer mu.Unlock()
				h[name] = values(response.Msg)
			}
			return nil
		})
	}
	for _, host := range p.hosts {
		ask("/"+host.Meta.Name, &v1.UsageRequest{Host: host.Meta.Name}, func(r *v1.UsageResponse) (values []float64) {
			for _, step := range r.Host {
				values = repeated(values, hostUse(host, step), step.Seconds)
			}
			return values
		})
		for _, g := range p.on[host.Meta.Name] {
			ask(g.Meta.Name, &v1.UsageRequest{Guest: g.Meta.Name}, func(r *v1.UsageResponse) (values []float64) {
				for _, step := range r.Guest {
					values = repeated(values, guestUse(g, step.Sample), step.Seconds)
				}
				return values
			})
		}
	}
	calls.Wait()
	return h
}

// repeated adds a value for each second of a step.
func repeated(values []float64, value, seconds float64) []float64 {
	for range min(stripLength, int(math.Round(seconds))) {
		values = append(values, value)
	}
	return values
}

// follow shows the picture until the user ends it.
func follow(ctx context.Context, env *cli.Env, c *client.Client, width, height int) error {
	s := &screen{width: width, height: height, guests: true, strips: strips{}, look: func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		p, err := look(ctx, env, c)
		if err != nil {
			return trouble{err}
		}
		return p
	}, past: func(p picture) tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return past(ctx, c, p)
	}, ask: func(v *view) tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, listPatience)
		defer cancel()
		return question(ctx, env, c, v)
	}}
	_, err := tea.NewProgram(s, tea.WithContext(ctx), tea.WithInput(env.In), tea.WithOutput(env.Out), tea.WithoutSignalHandler()).Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		return nil // Ctrl-C ends the command, like q
	}
	return err
}
