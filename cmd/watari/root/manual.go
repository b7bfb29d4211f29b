package root

import (
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
)

// Reference is the tree of commands for those who describe or check it. It is not for running them.
func Reference() *cobra.Command {
	root := New(&cli.Env{In: strings.NewReader(""), Out: os.Stdout, Err: os.Stderr, Now: time.Now})
	root.DisableAutoGenTag = true
	return root
}
