// Package console implements `watari console`: a link that logs a browser in to the web console.
package console

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

// New makes the command.
func New(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "console",
		Short: "Print a link to the web console",
		Long: "Print a link that logs a browser in to the web console as you. The link works once, within five minutes, and the browser stays logged in for " +
			"twelve hours, or until the manager restarts. The console shows sites, hosts and guests as they move, runs with their output, " +
			"checkpoints, events and the policy, and lets you do there what you may do here.\n\n" +
			"The manager has its own certificate authority, which browsers do not know, so the browser warns. Compare the fingerprint that it " +
			"shows with the one that this command prints.",
		Example:           "  watari console\n  xdg-open \"$(watari console -o json | jq -r .url)\"",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			made, err := c.CreateConsoleLink(ctx, connect.NewRequest(&v1.CreateConsoleLinkRequest{}))
			if err != nil {
				return fmt.Errorf("make a link to the web console: %w", err)
			}
			made.Msg.Fingerprint = fingerprint(ctx, c)
			return env.Show(made.Msg, func(w io.Writer) {
				fmt.Fprintln(w, made.Msg.Url)
				env.Notef("works once, within %s", output.Short(made.Msg.Expires.AsTime().Sub(env.Now())))
				if made.Msg.Fingerprint != "" {
					env.Notef("the browser will warn that it does not know the certificate; its SHA-256 fingerprint is %s", made.Msg.Fingerprint)
				}
			})
		}),
	}
}

// fingerprint returns the fingerprint of the certificate that the manager shows to browsers; empty: unknown.
func fingerprint(ctx context.Context, c *client.Client) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL("/console/"), nil)
	if err != nil {
		return ""
	}
	response, err := c.HTTP().Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	if response.TLS == nil || len(response.TLS.PeerCertificates) == 0 {
		return ""
	}
	sum := sha256.Sum256(response.TLS.PeerCertificates[0].Raw)
	return strings.ReplaceAll(fmt.Sprintf("% X", sum[:]), " ", ":")
}
