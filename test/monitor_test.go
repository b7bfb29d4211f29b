package test

// monitor_test.go - who uses the hosts: measurements, history and display.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// usage has the fields of `watari host show -o json` about a host's sample.
type usage struct {
	Sample struct {
		CPUGuests float64 `json:"cpuGuests"`
		CPUOwner  float64 `json:"cpuOwner"`
		Guests    []struct {
			Name string  `json:"name"`
			CPU  float64 `json:"cpu"`
			Sent float64 `json:"sent"`
		} `json:"guests"`
		Owner struct {
			Users        []string `json:"users"`
			TerminalIdle *float64 `json:"terminalIdle"`
		} `json:"owner"`
	} `json:"sample"`
}

// some is the least part of a core that a busy program gets, even on a machine that others use.
const some = 0.1

func TestWhoUsesTheHosts(t *testing.T) {
	newCluster(t, "use", 1, "--site", "a")
	settled(t, "use", 1)
	host := guestNamed(t, "use-0").Host
	t.Cleanup(func() {
		if t.Failed() {
			out, err := onHost(t, host, "ps", "-e", "-o", "pid,uid,stat,time,cgroup,args")
			t.Logf("the processes of host %s: %v\n%s", host, err, out)
		}
		must(t, "lab", "owner", "--name", labName, host, "away")
	})
	measured := func(what string, is func(u usage) bool) {
		t.Helper()
		until(t, time.Minute, what, func() (bool, string) {
			u := decoded[usage](t, "host", "show", host)
			return is(u), fmt.Sprintf("%+v", u)
		})
	}
	measured("the guest is measured, and nobody is there", func(u usage) bool {
		return len(u.Sample.Guests) == 1 && u.Sample.Guests[0].Name == "use-0" && len(u.Sample.Owner.Users) == 0
	})
	must(t, "run", "use", "--detach", "--", "sh", "-c", "while :; do :; done")
	measured("the guest computes", func(u usage) bool {
		return len(u.Sample.Guests) == 1 && u.Sample.Guests[0].CPU > some && u.Sample.CPUGuests > some
	})
	must(t, "lab", "owner", "--name", labName, host, "busy")
	measured("the owner computes, too", func(u usage) bool { return u.Sample.CPUOwner > some && u.Sample.CPUGuests > some })
	must(t, "lab", "owner", "--name", labName, host, "types")
	measured("the owner types", func(u usage) bool {
		return len(u.Sample.Owner.Users) == 1 && u.Sample.Owner.TerminalIdle != nil && *u.Sample.Owner.TerminalIdle < 15
	})
	out := must(t, "top", "--once")
	for _, want := range []string{host, "use-0", "owner, typed"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	must(t, "lab", "owner", "--name", labName, host, "away")
	measured("the owner is away", func(u usage) bool { return len(u.Sample.Owner.Users) == 0 && u.Sample.CPUOwner < some })
}

// prometheusPort is where the test's Prometheus listens.
const prometheusPort = "9091"

// A real Prometheus asks the manager, and then the agent of one host. Each time it finds data for each expression of the
// dashboard.
func TestPrometheusAndTheDashboard(t *testing.T) {
	newCluster(t, "seen", 1)
	settled(t, "seen", 1)
	host := guestNamed(t, "seen-0").Host
	owner(t, host, "types")
	address := decoded[struct{ Info struct{ LanAddress string } }](t, "host", "show", host).Info.LanAddress
	manager, agent := "127.0.0.1:7073", address+":7074"
	for _, target := range []string{manager, agent} {
		t.Run(target, func(t *testing.T) {
			prometheus(t, target)
			for _, expression := range dashboardExpressions(t) {
				until(t, time.Minute, expression, func() (bool, string) {
					n, err := query(strings.ReplaceAll(expression, "$site", ".*"))
					return n > 0, fmt.Sprint(n, " results, ", err)
				})
			}
		})
	}
	// An agent publishes a sample without rates when its owner types again after a pause. The next sample has them.
	until(t, time.Minute, "manager and agent have the same metrics", func() (bool, string) {
		all, own := metricsOf(t, manager), metricsOf(t, agent)
		return slices.Equal(all, own), fmt.Sprintf("the manager has\n%q\nand the agent of host %s has\n%q", all, host, own)
	})
}

// metricsOf returns the names of Watari's metrics that a daemon serves. Prometheus' own tool checks all of the daemon's metrics.
func metricsOf(t *testing.T, target string) (names []string) {
	t.Helper()
	response, err := http.Get("http://" + target + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s answers %s: %v", target, response.Status, err)
	}
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = bytes.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool complains about the metrics of %s: %v\n%s", target, err, out)
	}
	for line := range strings.Lines(string(text)) {
		if name, is := strings.CutPrefix(line, "# TYPE watari_"); is {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Errorf("%s serves no metrics of Watari:\n%s", target, text)
	}
	slices.Sort(names)
	return names
}

// prometheus runs a Prometheus that asks a daemon for its metrics, until the test ends.
func prometheus(t *testing.T, target string) {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("needs prometheus: scripts/setup.sh test")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `scrape_configs:
  - job_name: watari
    scrape_interval: 1s
    static_configs: [{targets: [%q]}]
`, target), 0o644); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:"+prometheusPort)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("Prometheus says:\n%s", text)
		}
	})
}

func dashboardExpressions(t *testing.T) (all []string) {
	data, err := os.ReadFile("../examples/grafana-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			all = append(all, target.Expr)
		}
	}
	if len(all) == 0 {
		t.Fatal("the dashboard has no expressions")
	}
	return all
}

// query returns how many series Prometheus has for an expression.
func query(expression string) (int, error) {
	response, err := http.Get("http://127.0.0.1:" + prometheusPort + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var answer struct {
		Error string `json:"error"`
		Data  struct {
			Result []json.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Error != "" {
		return 0, fmt.Errorf("%s", answer.Error)
	}
	return len(answer.Data.Result), nil
}
