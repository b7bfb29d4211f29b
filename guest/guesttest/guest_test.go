package guesttest

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOneGuest(t *testing.T) {
	image := Image(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	identity := Identities(t, 1)[0]
	begun := time.Now()
	g := Boot(t, image, identity, 0, filepath.Join(t.TempDir(), "net"))
	d := g.Ready(time.Minute)
	t.Logf("identified after %v: %v", time.Since(begun), d)
	if d.GetName() != "md-0" || d.GetGuestUid() != identity.GetGuestUid() || d.GetEpoch() != 1 {
		t.Errorf("the guest believes to be %v", d)
	}
	begun = time.Now()
	g.Ready(time.Minute)
	t.Logf("identified again in %v", time.Since(begun))
	for script, want := range map[string]string{
		"hostname":                         "md-0\n",
		"cat /etc/hostname":                "md-0\n",
		"cat /etc/machine-id":              identity.GetMachineId() + "\n",
		"id -un; id -u; id -g":             "watari\n1000\n1000\n",
		"echo $HOME $USER $LOGNAME $SHELL": "/home/watari watari watari /bin/bash\n",
		"cat /sys/class/net/eth0/mtu /sys/class/net/eth0/address": "1420\n02:77:0a:4d:00:0a\n",
		"cat /run/watari/hostfile":                                "md-0 slots=1\n",
		"cat /proc/sys/kernel/yama/ptrace_scope":                  "0\n",
		"ulimit -l":                                               "unlimited\n",
		"cat /proc/self/oom_score_adj":                            "0\n",
		"ls /run/watari/pki 2>/dev/null || echo no":               "no\n",
	} {
		if out := g.MustRun(ctx, "watari", script); out != want {
			t.Errorf("%s: %q, want %q", script, out, want)
		}
	}
	route := g.MustRun(ctx, "", "ip route; ip neighbour; ip address show eth0")
	for _, want := range []string{"default via 169.254.77.1 dev eth0", "onlink", "169.254.77.1 dev eth0 lladdr 02:77:0a:4d:00:0b PERMANENT", "inet 10.77.0.10/32"} {
		if !strings.Contains(route, want) {
			t.Errorf("network lacks %q:\n%s", want, route)
		}
	}
	if r, err := g.Run(ctx, "", "kill -9 $$"); err != nil || r.Code != 137 {
		t.Errorf("killed by signal 9: %v %v", r, err)
	}
	// Orphans end up at process 1, which reaps them.
	g.MustRun(ctx, "", "(sleep 0.2 &) ; sleep 1; ! ps -eo stat,ppid,comm | grep '^Z'")
}

// pair boots two guests of one cluster.
func pair(t *testing.T) (context.Context, *Guest, *Guest) {
	image := Image(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	network := filepath.Join(t.TempDir(), "net")
	identities := Identities(t, 2)
	a, b := Boot(t, image, identities[0], 0, network), Boot(t, image, identities[1], 1, network)
	a.Ready(time.Minute)
	b.Ready(time.Minute)
	return ctx, a, b
}

func TestCommandsInOtherGuests(t *testing.T) {
	ctx, a, b := pair(t)
	for script, want := range map[string]Result{
		"watari-guest rsh md-1 hostname":                                {Stdout: "md-1\n"},
		"watari-guest rsh -x -l watari md-1 id -un":                     {Stdout: "watari\n"},
		"echo in | watari-guest rsh md-1 'cat; echo err >&2; exit 3'":   {Stdout: "in\n", Stderr: "err\n", Code: 3},
		"watari-guest rsh 10.77.0.11 'kill -9 $$'":                      {Code: 137},
		"watari-guest rsh md-0 hostname":                                {Stdout: "md-0\n"},
		"head -c 3000000 /dev/zero | watari-guest rsh md-1 cat | wc -c": {Stdout: "3000000\n"},
	} {
		r, err := a.Run(ctx, "watari", script)
		if err != nil || r != want {
			t.Errorf("%s: %+v, %v", script, r, err)
		}
	}
	if r, err := a.Run(ctx, "watari", "watari-guest rsh md-9 true"); err != nil || r.Code != 255 || !strings.Contains(r.Stderr, "md-9") {
		t.Errorf("unknown guest: %+v, %v", r, err)
	}
	// What was started in a peer ends with a killed launcher, and at a signal.
	a.MustRun(ctx, "watari", `watari-guest rsh md-1 sleep 1001 & p=$!
		until watari-guest rsh md-1 pgrep -f '[s]leep.1001'; do sleep 0.1; done; kill -9 $p`)
	a.MustRun(ctx, "watari", `watari-guest rsh md-1 sleep 1002 & p=$!
		until watari-guest rsh md-1 pgrep -f '[s]leep.1002'; do sleep 0.1; done; kill -TERM $p; wait $p; test $? = 143`)
	b.MustRun(ctx, "", "for i in $(seq 100); do pgrep -f 'sleep.100[12]' || exit 0; sleep 0.1; done; ps -ef; exit 1")
}

func TestMPIOverTwoGuests(t *testing.T) {
	ctx, a, _ := pair(t)
	if a.MustRun(ctx, "watari", "type mpirun >/dev/null 2>&1 && echo yes || echo no") == "no\n" {
		t.Skip("the image has no mpirun (Debian package openmpi-bin)")
	}
	begun := time.Now()
	out := a.MustRun(ctx, "watari", `mpirun -np 4 --oversubscribe --hostfile /run/watari/hostfile \
		--mca plm_rsh_agent "watari-guest rsh" sh -c 'echo $OMPI_COMM_WORLD_RANK $(hostname)'`)
	t.Logf("mpirun of 4 ranks took %v: %q", time.Since(begun), out)
	if strings.Count(out, "md-0") != 2 || strings.Count(out, "md-1") != 2 {
		t.Errorf("ranks ran as %q", out)
	}
}
