package root

import (
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
)

// Reference returns the tree of commands for documentation and checks. It must not be run.
func Reference() *cobra.Command {
	root := New(&cli.Env{In: strings.NewReader(""), Out: os.Stdout, Err: os.Stderr, Now: time.Now})
	root.DisableAutoGenTag = true
	return root
}
