package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/client"
)

// Names fetches names for completion.
type Names func(context.Context, *client.Client) ([]string, error)

// completionTimeout limits how long a shell waits at Tab if no manager answers.
const completionTimeout = 2 * time.Second

// Complete completes a command's first arguments, with one list for each.
func (e *Env) Complete(lists ...Names) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(lists) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return e.complete(command.Context(), lists[len(args)], begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteEach completes each argument with names that are no argument yet.
func (e *Env) CompleteEach(names Names) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		all := e.complete(command.Context(), names, begun)
		return slices.DeleteFunc(all, func(name string) bool { return slices.Contains(args, name) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteFlag completes a flag with names.
func (e *Env) CompleteFlag(command *cobra.Command, flag string, names Names) {
	_ = command.RegisterFlagCompletionFunc(flag, func(command *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return e.complete(command.Context(), names, begun), cobra.ShellCompDirectiveNoFileComp
	})
}

// CompleteFile completes a command's first argument with files, and no other argument.
func CompleteFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// CompleteFiles completes flags with files.
func CompleteFiles(command *cobra.Command, flags ...string) {
	for _, flag := range flags {
		_ = command.MarkFlagFilename(flag)
	}
}

// CompleteFolders completes flags with directories.
func CompleteFolders(command *cobra.Command, flags ...string) {
	for _, flag := range flags {
		_ = command.MarkFlagDirname(flag)
	}
}

// CompleteNothingElse turns off file completion for all other flags of a command and of those below it.
func CompleteNothingElse(command *cobra.Command) {
	command.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		_, files := flag.Annotations[cobra.BashCompFilenameExt]
		_, folders := flag.Annotations[cobra.BashCompSubdirsInDir]
		if _, has := command.GetFlagCompletionFunc(flag.Name); !has && !files && !folders {
			_ = command.RegisterFlagCompletionFunc(flag.Name, cobra.NoFileCompletions)
		}
	})
	for _, sub := range command.Commands() {
		CompleteNothingElse(sub)
	}
}

func (e *Env) complete(ctx context.Context, names Names, begun string) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	config, err := e.LoadConfig()
	if err != nil {
		return nil
	}
	c, err := client.Open(config)
	if err != nil {
		return nil
	}
	all, err := names(ctx, c)
	if err != nil {
		return nil
	}
	var fitting []string
	for _, name := range all {
		if strings.HasPrefix(name, begun) {
			fitting = append(fitting, name)
		}
	}
	return fitting
}

// Words completes with fixed words.
func Words(words ...string) Names {
	return func(context.Context, *client.Client) ([]string, error) { return words, nil }
}

type named interface{ GetMeta() *v1.Meta }

func namesOf[T named](objects []T, err error) ([]string, error) {
	var names []string
	for _, object := range objects {
		names = append(names, object.GetMeta().GetName())
	}
	return names, err
}

// Hosts lists the hosts' names.
func Hosts(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListHosts, &v1.ListHostsRequest{}, (*v1.ListHostsResponse).GetHosts))
}

// Sites lists the names of the hosts' sites.
func Sites(ctx context.Context, c *client.Client) ([]string, error) {
	hosts, err := client.List(ctx, c.ListHosts, &v1.ListHostsRequest{}, (*v1.ListHostsResponse).GetHosts)
	var sites []string
	for _, host := range hosts {
		if site := host.GetInfo().GetSite(); !slices.Contains(sites, site) {
			sites = append(sites, site)
		}
	}
	return sites, err
}

// Images lists the images' names.
func Images(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListImages, &v1.ListImagesRequest{}, (*v1.ListImagesResponse).GetImages))
}

// Clusters lists the clusters' names.
func Clusters(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListClusters, &v1.ListClustersRequest{}, (*v1.ListClustersResponse).GetClusters))
}

// Guests lists the guests' names.
func Guests(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListGuests, &v1.ListGuestsRequest{}, (*v1.ListGuestsResponse).GetGuests))
}

// Runs lists the runs' names.
func Runs(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListRuns, &v1.ListRunsRequest{}, (*v1.ListRunsResponse).GetRuns))
}

// ActiveRuns lists the names of the runs that have not ended.
func ActiveRuns(ctx context.Context, c *client.Client) ([]string, error) {
	return runsThat(ctx, c, false)
}

// EndedRuns lists the names of the runs that have ended.
func EndedRuns(ctx context.Context, c *client.Client) ([]string, error) {
	return runsThat(ctx, c, true)
}

func runsThat(ctx context.Context, c *client.Client, ended bool) ([]string, error) {
	runs, err := client.List(ctx, c.ListRuns, &v1.ListRunsRequest{}, (*v1.ListRunsResponse).GetRuns)
	return namesOf(slices.DeleteFunc(runs, func(run *v1.Run) bool { return (run.GetEnded() != nil) != ended }), err)
}

// Migrations lists the names of the migrations in progress.
func Migrations(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListMigrations, &v1.ListMigrationsRequest{Active: true}, (*v1.ListMigrationsResponse).GetMigrations))
}

// Checkpoints lists the names of the checkpoints.
func Checkpoints(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListCheckpoints, &v1.ListCheckpointsRequest{}, (*v1.ListCheckpointsResponse).GetCheckpoints))
}

// Storage lists the names of the storage that the user may mount.
func Storage(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListStorage, &v1.ListStorageRequest{}, (*v1.ListStorageResponse).GetStorage))
}

// Volumes lists the names of the volumes.
func Volumes(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListVolumes, &v1.ListVolumesRequest{}, (*v1.ListVolumesResponse).GetVolumes))
}

// Users lists the users' names.
func Users(ctx context.Context, c *client.Client) ([]string, error) {
	return namesOf(client.List(ctx, c.ListUsers, &v1.ListUsersRequest{}, (*v1.ListUsersResponse).GetUsers))
}

// PolicyVersions lists the numbers of the policy's versions that are kept.
func PolicyVersions(ctx context.Context, c *client.Client) ([]string, error) {
	policies, err := client.List(ctx, c.ListPolicies, &v1.ListPoliciesRequest{}, (*v1.ListPoliciesResponse).GetPolicies)
	var versions []string
	for _, p := range policies {
		versions = append(versions, strconv.FormatUint(p.GetVersion(), 10))
	}
	return versions, err
}
