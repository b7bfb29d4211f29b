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
