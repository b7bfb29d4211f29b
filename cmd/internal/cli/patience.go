package cli

import (
	"context"
	"fmt"

	"watari/cmd/internal/client"
	"watari/internal/printable"
)

// tellAfter is the number of failures in a row after which the command prints what it waits for. The first few pass
// within a second.
const tellAfter = 3

// Patiently repeats an attempt like client.Patiently, and prints a line if the manager stays away. Lines end with end:
// a raw terminal needs "\r
// ".
func (e *Env) Patiently(ctx context.Context, c *client.Client, end string, attempt func(alive func()) error) error {
	failures := 0
	notice := func(err error) {
		if failures++; failures == tellAfter {
			fmt.Fprintf(e.Err, "watari: waiting for the manager: %s%s", printable.Text(client.Brief(err)), end)
		}
	}
	return c.Patiently(ctx, notice, func(alive func()) error {
		return attempt(func() {
			failures = 0
			alive()
		})
	})
}
