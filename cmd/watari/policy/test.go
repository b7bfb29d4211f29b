package policy

// test.go - replays hosts' measurements with a policy, and shows what the policy would have done.

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
	"watari/internal/printable"
)

// slow is how long a replay takes before the command prints that it is under way.
const slow = time.Second

// messageLimit is the longest message of a step that is shown, in characters.
const messageLimit = 500

func newTest(env *cli.Env) *cobra.Command {
	var since, at string
	command := &cobra.Command{
		Use:   "test [FILE|-]",
		Short: "Say what a policy would have done, from what hosts have measured",
		Long: "Replay what hosts have measured, and say what a policy would have done with the present guests: which hosts guests " +
			"would have left, when, to where, and why. Nothing moves. The policy is that of a file (\"-\" is standard input), " +
			"or without FILE the one in force. What limits the answer goes to standard error. Without --since and --at, the last " +
			"24 hours are replayed.\n\n" +
			"--since takes a duration, as in 90m, 24h or 7d, or a time, as in 14:05, \"2026-03-01 14:05\" or RFC 3339. --at takes a " +
			"time, replays the ten minutes before it and the minute after it, and shows only what happens in these. A time " +
			"without a day is today's.\n\n" +
			"Only administrators can do this.",
		Example:           "  watari policy test policy.yaml --since 7d\n  watari policy test --at 14:05\n  watari policy test -o json | jq '.steps[].message'",
		Args:              cli.ArgsBetween(0, "FILE"),
		ValidArgsFunction: cli.CompleteFile,
	}
	command.Flags().StringVar(&since, "since", "24h", "begin of the replay: a duration or a time")
	command.Flags().StringVar(&at, "at", "", "replay only what is around this time")
	command.RunE = env.Run(func(ctx context.Context, args []string) error {
		if command.Flags().Changed("since") && command.Flags().Changed("at") {
			return cli.Usagef("--since and --at exclude each other: --at sets the begin and the end of the replay")
		}
		w, err := windowSince(env.Now(), since)
		if command.Flags().Changed("at") {
			w, err = windowAt(env.Now(), at)
		}
		if err != nil {
			return err
		}
		return test(ctx, env, args, w)
	})
	return command
}

func test(ctx context.Context, env *cli.Env, args []string, w window) error {
	from := file{name: "the policy in force"}
	if len(args) > 0 {
		var err error
		if from, err = readFile(ctx, env, args[0]); err != nil {
			return err
		}
	}
	c, err := env.Client()
	if err != nil {
		return err
	}
	response, err := replay(ctx, env, c, w.request(from.text))
	if err != nil {
		return from.refusal("test", err)
	}
	response.Steps = slices.DeleteFunc(response.Steps, func(s *v1.PolicyStep) bool { return !w.has(s.GetAt().AsTime()) })
	return env.Show(response, func(out io.Writer) {
		describe(out, env, response.Steps, w)
		for _, note := range response.Notes {
			env.Notef("note: %s", printable.Line(note, messageLimit))
		}
	})
}

// request returns the request for a replay of the window.
func (w window) request(text string) *v1.TestPolicyRequest {
	request := &v1.TestPolicyRequest{Text: text, Since: timestamppb.New(w.since)}
	if !w.until.IsZero() {
		request.Until = timestamppb.New(w.until)
	}
	return request
}

// replay asks the manager for a replay, and prints that it is under way if it takes long.
func replay(ctx context.Context, env *cli.Env, c *client.Client, request *v1.TestPolicyRequest) (*v1.TestPolicyResponse, error) {
	answered, cleared := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(cleared)
		select {
		case <-answered:
		case <-time.After(slow):
			lines := progress.New(env.Err)
			lines.Set(progress.Line{Key: "test", Text: "replaying what hosts have measured since " + output.Time(env.Now(), request.Since) + " ..."})
			<-answered
			lines.Clear()
		}
	}()
	response, err := c.TestPolicy(ctx, connect.NewRequest(request))
	close(answered)
	<-cleared
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}

// describe shows one line for each step, and the sum.
func describe(w io.Writer, env *cli.Env, steps []*v1.PolicyStep, replayed window) {
	here := env.Now().Location()
	for _, s := range steps {
		fmt.Fprintf(w, "%s  %-11s  %s\n", s.GetAt().AsTime().In(here).Format(time.DateTime), s.GetPolicy(), printable.Line(what(s), messageLimit))
	}
	until := "now"
	if !replayed.until.IsZero() {
		until = replayed.until.In(here).Format(time.DateTime)
	}
	fmt.Fprintf(w, "%s, from %s to %s\n", sum(steps), replayed.since.In(here).Format(time.DateTime), until)
}

// what describes what a step does, and why.
func what(s *v1.PolicyStep) string {
	switch {
	case s.GetMessage() != "":
		return s.GetMessage()
	case s.GetGuest() == "":
		return "host " + s.GetHost()
	case s.GetTarget() == "":
		return fmt.Sprintf("guest %s stays on %s: no host has room", s.GetGuest(), s.GetHost())
	}
	return fmt.Sprintf("guest %s moves from %s to %s", s.GetGuest(), s.GetHost(), s.GetTarget())
}

// sum counts steps: "3 moves, 1 host withdrawn". A host counts once, even if it is withdrawn several times.
func sum(steps []*v1.PolicyStep) string {
	moves, stay, withdrawn := 0, 0, map[string]bool{}
	for _, s := range steps {
		switch {
		case s.GetGuest() == "":
			withdrawn[s.GetHost()] = true
		case s.GetTarget() == "":
			stay++
		default:
			moves++
		}
	}
	parts := []string{output.Count(moves, "move")}
	if stay > 0 {
		parts = append(parts, output.Count(stay, "move")+" without a host that has room")
	}
	return strings.Join(append(parts, output.Count(len(withdrawn), "host")+" withdrawn"), ", ")
}
