package test

// input_test.go - bad input: each error names the thing, the reason and the next step.

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return 0
}

func TestBadInputIsAnsweredWithAReason(t *testing.T) {
	for _, c := range []struct {
		command string
		words   []string
	}{
		{"cluster create Bad_Name --guests 1 --image mpi", []string{"Bad_Name"}},
		{"cluster create x --guests 0 --image mpi", []string{"guests"}},
		{"cluster create x --guests 1 --memory 12parsecs --image mpi", []string{"12parsecs"}},
		{"cluster create x --guests 1 --image nothing", []string{"nothing", "mpi"}},
		{"cluster create x --guests 1 --memory 900G --image mpi", []string{"a1", "a2", "b1", "b2"}},
		{"cluster create x --guests 1 --vcpus 64 --image mpi", []string{"a1", "cores"}},
		{"cluster create x --guests 1 --image mpi --site nowhere", []string{"nowhere"}},
		{"cluster show nobody", []string{"nobody"}},
		{"migrate nobody-0 --to a1", []string{"nobody-0"}},
		{"run nobody -- true", []string{"nobody"}},
		{"host show z9", []string{"z9"}},
		{"guest exec nobody-0 -- true", []string{"nobody-0"}},
		{"image remove nothing", []string{"nothing"}},
		{"cluster create " + strings.Repeat("x", 41) + " --guests 1 --image mpi", []string{"40"}},
		{"cluster create x --guests 1 --image mpi --spread moon", []string{"moon", "site", "host"}},
		{"cluster delete nobody", []string{"nobody"}},
		{"host drain z9", []string{"z9"}},
		{"guest stop nobody-0", []string{"nobody-0"}},
		{"guest console nobody-0", []string{"nobody-0"}},
		{"migrate show nobody-0-m1", []string{"nobody-0-m1"}},
		{"migrate cancel nobody-0", []string{"nobody-0"}},
		{"run show nobody-run-1", []string{"nobody-run-1"}},
		{"run attach ..", []string{".."}},
		{"run cancel nobody-run-1", []string{"nobody-run-1"}},
		{"image show nothing", []string{"nothing"}},
		{"image build Bad_Name --packages bash", []string{"Bad_Name"}},
		{"image build x --packages no-such-package-in-debian", []string{"no-such-package-in-debian"}},
		{"lab wan set --name " + labName + " 20parsecs", []string{"20parsecs"}},
	} {
		t.Run(c.command, func(t *testing.T) { refused(t, c.words, strings.Fields(c.command)...) })
	}
}

func TestSecondCreateOfTheSameName(t *testing.T) {
	newCluster(t, "twice", 1)
	must(t, "cluster", "create", "twice", "--guests", "1", "--memory", "256M", "--image", imageName)
	refused(t, []string{"twice"}, "cluster", "create", "twice", "--guests", "2", "--memory", "256M", "--image", imageName)
	t.Run("migrate to where it is", func(t *testing.T) {
		refused(t, []string{"already"}, "migrate", "twice-0", "--to", guestNamed(t, "twice-0").Host)
	})
	t.Run("migrate to an unknown host", func(t *testing.T) {
		refused(t, []string{"z9", "a1"}, "migrate", "twice-0", "--to", "z9")
	})
	t.Run("an image in use is not removed", func(t *testing.T) {
		refused(t, []string{"twice"}, "image", "remove", imageName)
	})
}

func TestDeleteDuringCreate(t *testing.T) {
	strikes(t, func() (struck bool, how string) {
		must(t, "cluster", "create", "brief", "--guests", "2", "--memory", "256M", "--image", imageName)
		ready := func() (n int, list []guest) {
			for _, g := range decoded[[]guest](t, "guest", "list") {
				if !strings.HasPrefix(g.Meta.Name, "brief-") {
					continue
				}
				list = append(list, g)
				how += fmt.Sprintf("%s %s %q, ", g.Meta.Name, g.State, g.Message)
				if g.Ready {
					n++
				}
			}
			return n, list
		}
		before, guests := ready()
		must(t, "cluster", "delete", "brief")
		how += "deleted, "
		after, _ := ready() // a guest that became ready just before the deletion stays so for a moment
		until(t, settle, "the cluster is gone", func() (bool, string) {
			out := must(t, "cluster", "list")
			return !strings.Contains(out, "brief"), out
		})
		for _, g := range guests {
			if n := copies(g.Meta.UID); n != 0 {
				t.Errorf("%d copies of guest %s are left", n, g.Meta.UID)
			}
		}
		return len(guests) == 2 && before == 0 && after == 0, fmt.Sprintf("%s%d guests were ready before, %d after", how, before, after)
	})
}

func TestInterruptOfAWaitLeavesTheClusterStarting(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	create := shared.command(ctx, "cluster", "create", "later", "--guests", "1", "--memory", "256M", "--image", imageName, "--wait")
	var out strings.Builder
	create.Stdout, create.Stderr = &out, &out
	if err := create.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, "cluster", "delete", "later", "--wait") })
	until(t, settle, "the cluster is created", func() (bool, string) {
		list := must(t, "cluster", "list")
		return strings.Contains(list, "later"), list
	})
	interrupt()
	if code := exitCode(create.Wait()); code != 130 {
		t.Errorf("status %d after an interrupt, want 130:\n%s", code, &out)
	}
	settled(t, "later", 1)
}

func TestMigrateToAFullHost(t *testing.T) {
	hostsReady(t)
	newCluster(t, "small", 1, "--site", "a")
	host := decoded[struct{ Info struct{ MemoryBytes string } }](t, "host", "show", "b1")
	bytes, err := strconv.ParseUint(host.Info.MemoryBytes, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	// Reserved memory counts, even if it is not used yet. The rest is too little for another guest, and enough for the
	// host's daemons.
	must(t, "cluster", "create", "large", "--guests", "2", "--spread", "host", "--site", "b", "--image", imageName,
		"--memory", strconv.FormatUint(bytes>>20-200, 10)+"M")
	t.Cleanup(func() { must(t, "cluster", "delete", "large", "--wait") })
	until(t, settle, "the hosts are taken", func() (bool, string) {
		list := guestsOf(t, "large")
		return len(list) == 2 && list[0].Host != "" && list[1].Host != "", fmt.Sprintf("%+v", list)
	})
	refused(t, []string{"small-0", "b1", "memory", "are free"}, "migrate", "small-0", "--to", "b1")
	refused(t, []string{"b1", "b2", "memory"}, "cluster", "create", "none", "--guests", "1", "--memory", "256M", "--image", imageName, "--site", "b")
	settled(t, "small", 1)
}
