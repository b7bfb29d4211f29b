// Package cluster holds the commands about clusters.
package cluster

import (
	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
)

// New returns `watari cluster`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "cluster",
		Aliases: []string{"clusters"},
		Short:   "Virtual clusters: create, list, show, traffic, resize, delete",
		Long: "A cluster is a set of guests (virtual machines) that form one MPI cluster: they share a home directory, " +
			"know each other by name, and keep their addresses wherever they run.",
		Example: "  watari cluster create md --guests 4 --vcpus 1 --memory 512M --image mpi --wait\n" +
			"  watari cluster list",
	}, newCreate(env), newList(env), newShow(env), newTraffic(env), newResize(env), newDelete(env))
}
