package lab

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"watari/lab/machine"
)

func TestWholeHostsAreChosen(t *testing.T) {
	p := plan{sites: 2, hosts: 2}
	for _, c := range []struct {
		name  string
		whole Whole
		want  map[string]string // suite by host
		err   string
	}{
		{"all", Whole{}, map[string]string{"a1": "bookworm", "a2": "bookworm", "b1": "bookworm", "b2": "bookworm"}, ""},
		{"a site and a host", Whole{Hosts: []string{"a", "b2"}}, map[string]string{"a1": "bookworm", "a2": "bookworm", "b2": "bookworm"}, ""},
		{"another suite", Whole{Hosts: []string{"b1"}, Suites: map[string]string{"": "trixie"}}, map[string]string{"b1": "trixie"}, ""},
		{"mixed suites", Whole{Suites: map[string]string{"": "trixie", "a": "bookworm", "a2": "trixie"}},
			map[string]string{"a1": "bookworm", "a2": "trixie", "b1": "trixie", "b2": "trixie"}, ""},
		{"an unknown host", Whole{Hosts: []string{"c1"}}, nil, `"c1"`},
		{"the suite of an unknown host", Whole{Suites: map[string]string{"c": "trixie"}}, nil, `"c"`},
		{"the suite of a host that is not whole", Whole{Hosts: []string{"a"}, Suites: map[string]string{"b": "trixie"}}, nil, "trixie of b"},
		{"an unknown suite", Whole{Suites: map[string]string{"": "sid"}}, nil, `"sid"`},
		{"the CPU of a host that is not whole", Whole{Hosts: []string{"a"}, Models: map[string]string{"b": "EPYC"}}, nil, "EPYC of b"},
		{"an odd CPU", Whole{Models: map[string]string{"": "max -S"}}, nil, `"max -S"`},
		{"three cells", Whole{Cells: 3}, nil, "3 NUMA cells"},
	} {
		specs, err := c.whole.specs(p)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, %v; want an error that names %s", c.name, specs, err, c.err)
			}
			continue
		}
		got := map[string]string{}
		for host, spec := range specs {
			got[host] = spec.Suite
			if want := (machine.Spec{Suite: spec.Suite, Model: machine.DefaultModel, Memory: 3072, Cells: 2}); spec != want {
				t.Errorf("%s: %s is %+v, want %+v", c.name, host, spec, want)
			}
		}
		if err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
	if specs, err := (*Whole)(nil).specs(p); len(specs) > 0 || err != nil {
		t.Errorf("nothing asked for: %v, %v", specs, err)
	}
}

func TestWordsSurviveAShell(t *testing.T) {
	words := []string{"a b", "", "it's", `"$HOME"`, "a\nb", `\`, "*", "-n"}
	command := `printf '%s|'`
	for _, word := range words {
		command += " " + quote(word)
	}
	out, err := exec.Command("sh", "-c", command).Output()
	if want := strings.Join(words, "|") + "|"; err != nil || string(out) != want {
		t.Errorf("the shell has %q, %v; want %q", out, err, want)
	}
}

func TestUnitsAreRead(t *testing.T) {
	text := `MainPID=0
NRestarts=0
Result=success
ExecMainStartTimestamp=@1700000000
Id=libvirtd.service
LoadState=loaded
ActiveState=inactive

MainPID=0
NRestarts=2
Result=exit-code
ExecMainStartTimestamp=@1700000001
Id=watari-agent.service
LoadState=loaded
ActiveState=activating
`
	daemons := parseUnits(text)
	got := slices.Collect(func(yield func(string) bool) {
		for _, d := range daemons {
			yield(d.Name + " " + d.Error)
		}
	})
	if want := []string{"libvirtd ", "agent activating, exit-code"}; !slices.Equal(got, want) || daemons[1].Starts != 3 {
		t.Errorf("daemons %q, %+v; want %q", got, daemons, want)
	}
	if daemons := parseUnits("MainPID=0\nId=watari-agent.service\nLoadState=not-found\n"); len(daemons) > 0 {
		t.Errorf("a unit that is not there: %+v", daemons)
	}
}
