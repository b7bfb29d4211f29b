package local

// down.go - watari down.

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/daemon"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
)

// grace is how long a daemon may take to end after SIGTERM.
const grace = 10 * time.Second

// NewDown returns `watari down`.
func NewDown(env *cli.Env) *cobra.Command {
	var l layout
	var guests bool
	command := &cobra.Command{
		Use:   "down",
		Short: "End what `watari up` started on this machine",
		Long: "End the agent, the manager and the libvirt daemons that `watari up` started on this machine. Guests and runs continue, " +
			"and the next `watari up` finds them again. With --guests, the guests of this machine end, " +
			"too, and the next `watari up` starts them anew. The command touches nothing that `watari up` did not start, and " +
			"it deletes no state.",
		Example:           "  sudo watari down\n  sudo watari down --guests",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Run(func(ctx context.Context, _ []string) error {
			if err := needRoot("watari down"); err != nil {
				return err
			}
			state, err := filepath.Abs(l.state)
			if err != nil {
				return err
			}
			l.state = state
			return down(ctx, env, l, guests)
		}),
	}
	command.Flags().BoolVar(&guests, "guests", false, "end the guests of this machine, too")
	command.Flags().StringVar(&l.state, "state", defaultState, "directory of all of Watari's state")
	cli.CompleteFolders(command, "state")
	return command
}

func down(ctx context.Context, env *cli.Env, l layout, guests bool) error {
	lines := progress.New(env.Err)
	defer lines.Clear()
	ended := 0
	stop := func(specs ...daemon.Spec) error {
		var failed []error
		for _, spec := range specs {
			process, err := running(spec, lines.Notef)
			if err == nil && process != nil {
				lines.Set(progress.Line{Key: spec.Name, Text: fmt.Sprintf("ending %s%s", spec.Name, process.Number())})
				if err = process.Stop(grace); err == nil {
					ended++
					lines.Notef("%s has ended", spec.Name)
				}
			} else if err == nil {
				var was bool
				if was, err = daemon.Disarm(spec); was && err == nil {
					ended++
					lines.Notef("%s was not running, and is no longer started at boot", spec.Name)
				}
			}
			failed = append(failed, err)
		}
		return errors.Join(failed...)
	}
	failed := []error{stop(l.agent())}
	left, err := findGuests(l.agentState())
	failed = append(failed, err)
	if guests && (len(left) > 0 || l.hasCertificate()) { // a host that has joined has an overlay even without guests
		lines.Set(progress.Line{Key: "guests", Text: "ending " + output.Count(len(left), "guest")})
		if err := endGuests(ctx, l); err != nil {
			failed = append(failed, err)
		} else if left, err = findGuests(l.agentState()); err == nil {
			lines.Notef("this machine's guests have ended, and its part of the overlay is removed")
		}
	}
	failed = append(failed, stop(l.libvirtd(), l.virtlogd(), l.manager()))
	if ended == 0 {
		lines.Notef("nothing that `watari up` started runs here (state in %s)", l.state)
	}
	if len(left) > 0 {
		lines.Notef("%s: %s; `sudo watari up` finds them again, `sudo watari down --guests` ends them",
			keepRunning(len(left)), strings.Join(names(left), ", "))
	}
	if answering := foreign(); answering != "" && ended > 0 {
		lines.Notef("%s", answering)
	}
	return errors.Join(failed...)
}

func keepRunning(n int) string {
	if n == 1 {
		return "1 guest keeps running"
	}
	return fmt.Sprintf("%d guests keep running", n)
}

// foreign describes running services that `watari up` uses and did not start.
func foreign() string {
	if libvirtAnswers() {
		return "the libvirt daemon goes on: `watari up` did not start it"
	}
	return ""
}
