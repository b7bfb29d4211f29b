package test

// program_test.go - an MPI program that computes until a test ends it, and whose answer is then checked.

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// program is a run of LAMMPS on a cluster of two guests. Each line of its table depends on all that both ranks have
// computed and sent before.
type program struct{ cluster, name string }

// endless is more steps than a test waits for.
const endless = "1000000"

// meltOf returns the command that runs LAMMPS on a cluster. more are arguments of the run.
func meltOf(cluster, name, steps string, more ...string) []string {
	begin := append([]string{"run", cluster, "--name", name, "--stage", "../examples/melt/in.melt"}, more...)
	return append(begin, "--", "lmp", "-in", "in.melt", "-var", "steps", steps)
}

// meltTable returns the table in LAMMPS's output or log; false: it is not whole.
func meltTable(text string) (table string, whole bool) {
	_, rest, found := strings.Cut(text, "Step ")
	table, _, ended := strings.Cut(rest, "Loop time")
	return table, found && ended
}

// computing waits until a run of LAMMPS writes its table.
func computing(t *testing.T, within time.Duration, name string) {
	t.Helper()
	until(t, within, "the program writes its table", func() (bool, string) {
		out, _ := shared.watari(20*time.Second, "run", "logs", name)
		return strings.Contains(out, "Step"), out
	})
}

// computes starts the program, and waits until it computes.
func computes(t *testing.T, cluster string) *program {
	t.Helper()
	p := &program{cluster, cluster + "-program"}
	must(t, meltOf(cluster, p.name, endless, "--detach")...)
	until(t, time.Minute, "the program writes its table", func() (bool, string) { return len(p.lines()) > 1, "" })
	return p
}

// lines returns the lines of the table so far, beginning with its heads.
func (p *program) lines() []string {
	out, err := shared.watari(20*time.Second, "run", "logs", p.name)
	_, rest, found := strings.Cut(out, "Step ")
	if err != nil || !found {
		return nil
	}
	lines := strings.SplitAfter(rest, "\n")
	return lines[:len(lines)-1] // what follows the last newline is no whole line
}

// running returns the lines of the table so far, and an error if the program does not run.
func (p *program) running() (lines []string, err error) {
	run, err := decode[run]("run", "show", p.name)
	if err == nil && !strings.HasSuffix(run.State, "_RUNNING") {
		err = fmt.Errorf("the run is %s: %s", run.State, run.Message)
	}
	return p.lines(), err
}

// goesOn waits until the program has written more lines, and returns all. TCP in a guest that was cut off for a minute tries
// again after 51 s.
func (p *program) goesOn(t *testing.T) (lines []string) {
	t.Helper()
	before := len(p.lines())
	until(t, 3*time.Minute, "the program goes on", func() (bool, string) {
		var err error
		if lines, err = p.running(); err != nil {
			t.Fatal(err)
		}
		return len(lines) >= before+3, ""
	})
	return lines
}

// right checks that the program still goes on, ends it, and compares its table with that of an undisturbed run.
func (p *program) right(t *testing.T) {
	t.Helper()
	lines := p.goesOn(t)
	must(t, "run", "cancel", p.name)
	until(t, time.Minute, "the program has ended", func() (bool, string) {
		run := decoded[run](t, "run", "show", p.name)
		return !run.Ended.IsZero(), run.State
	})
	table := strings.Join(lines, "")
	steps := lastStep(t, table)
	rightAnswer(t, table, steps)
	t.Logf("the first %d steps are right", steps)
}

// lastStep returns the number of the last step in a table.
func lastStep(t *testing.T, table string) int {
	t.Helper()
	table = strings.TrimSpace(table)
	last := table[strings.LastIndex(table, "\n")+1:]
	number, _, _ := strings.Cut(strings.TrimSpace(last), " ")
	steps, err := strconv.Atoi(number)
	if err != nil {
		t.Fatalf("the table's last line has no step: %q", last)
	}
	return steps
}

// rightAnswer checks that the table that two ranks have written ends with a step and is that of an undisturbed run.
func rightAnswer(t *testing.T, got string, steps int) {
	t.Helper()
	if last := lastStep(t, got); last != steps {
		t.Errorf("the last step is %d, want %d:\n%s", last, steps, got)
	}
	if want := undisturbed(t, steps); !strings.HasPrefix(want, got) {
		t.Errorf("the answers differ:\n%s\n---\n%s", want, got)
	}
}

// answer is the longest table of an undisturbed run of two ranks so far.
var answer struct {
	steps int
	table string
}

// undisturbed returns the table of an undisturbed run of at least so many steps. It is computed by the image's own programs,
// but on this machine itself. That takes seconds, an emulated guest takes minutes.
func undisturbed(t *testing.T, steps int) string {
	t.Helper()
	if steps > answer.steps {
		steps = max(steps, 5000)
		image := decoded[struct{ Root struct{ Digest string } }](t, "image", "show", imageName)
		_, sum, _ := strings.Cut(image.Root.Digest, ":")
		folder := t.TempDir()
		out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", `
			unsquashfs -quiet -no-progress -dest "$1/root" "$2"
			mount --bind /dev "$1/root/dev"
			mount -t proc proc "$1/root/proc"
			mount -t tmpfs tmpfs "$1/root/tmp"
			cp ../examples/melt/in.melt "$1/root/tmp"
			chroot "$1/root" sh -c "cd /tmp && exec mpirun --allow-run-as-root --oversubscribe -n 2 lmp -in in.melt -var steps $3"`,
			"undisturbed", folder, filepath.Join(shared.state, "manager", "blobs", "sha256", sum), strconv.Itoa(steps)).CombinedOutput()
		table, whole := meltTable(string(out))
		if err != nil || !whole {
			t.Fatalf("the undisturbed run: %v\n%s", err, out)
		}
		answer.steps, answer.table = steps, table
	}
	return answer.table
}

// eventsTell checks that the history contains each text.
func eventsTell(t *testing.T, texts ...string) {
	t.Helper()
	out := must(t, "events")
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("the history does not tell %q:\n%s", text, out)
		}
	}
}

// emptyHost returns the last of the hosts that take guests and have none.
func emptyHost(t *testing.T) (empty string) {
	t.Helper()
	for _, h := range decoded[[]struct {
		Meta   meta
		State  string
		Guests []string
	}](t, "host", "list") {
		if len(h.Guests) == 0 && strings.HasSuffix(h.State, "_READY") {
			empty = h.Meta.Name
		}
	}
	if empty == "" {
		t.Fatal("all hosts have guests or take none")
	}
	return empty
}
