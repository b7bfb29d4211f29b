package guesttest

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
	v1 "watari/api/watariv1"
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
		"cat /sys/class/net/eth0/mtu /sys/class/net/eth0/address":                        "1420\n02:77:0a:4d:00:0a\n",
		"cat /run/watari/hostfile":                                                       "md-0 slots=1\n",
		"cat /proc/sys/kernel/yama/ptrace_scope":                                         "0\n",
		"cd /proc/sys; cat vm/compaction_proactiveness vm/stat_interval kernel/watchdog": "0\n30\n0\n",
		"ulimit -l":                                 "unlimited\n",
		"cat /proc/self/oom_score_adj":              "0\n",
		"ls /run/watari/pki 2>/dev/null || echo no": "no\n",
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
	// Process 1 adopts and reaps orphans.
	g.MustRun(ctx, "", "(sleep 0.2 &) ; sleep 1; ! ps -eo stat,ppid,comm | grep '^Z'")
	// Process 1 outlives signals that would end another program. Programs do not inherit this.
	g.MustRun(ctx, "", "kill -HUP 1; kill -QUIT 1; kill -ABRT 1; sleep 0.5; ! sh -c 'kill -HUP $$'")
}

// pair boots two guests of one cluster.
func pair(t *testing.T) (context.Context, *Guest, *Guest) {
	image := Image(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
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
	if r, err := a.Run(ctx, "daemon", "watari-guest rsh md-1 true"); err != nil || r.Code != 255 || !strings.Contains(r.Stderr, "may not start programs") {
		t.Errorf("a service's user: %+v, %v", r, err)
	}
	// A program in a peer ends when its launcher is killed or gets a signal.
	a.MustRun(ctx, "watari", `watari-guest rsh md-1 sleep 1001 & p=$!
		until watari-guest rsh md-1 pgrep -f '[s]leep.1001'; do sleep 0.1; done; kill -9 $p`)
	a.MustRun(ctx, "watari", `watari-guest rsh md-1 sleep 1002 & p=$!
		until watari-guest rsh md-1 pgrep -f '[s]leep.1002'; do sleep 0.1; done; kill -TERM $p; wait $p; test $? = 143`)
	b.MustRun(ctx, "", "for i in $(seq 100); do pgrep -f 'sleep.100[12]' || exit 0; sleep 0.1; done; ps -ef; exit 1")
}

func TestAGuestsCertificateIsReplacedWhileItRuns(t *testing.T) {
	ctx, a, b := pair(t)
	reaches := func() bool { // rsh tries for two minutes, because certificates are not replaced in all guests at once
		r, err := a.Run(ctx, "watari", "timeout 15 watari-guest rsh md-1 true")
		return err == nil && r.Code == 0
	}
	b.MustRun(ctx, "watari", `watari-guest rsh md-0 sleep 1003 >/dev/null 2>&1 </dev/null &
		until pgrep -f '[r]sh md-0 sleep.1003'; do sleep 0.1; done`)
	a.MustRun(ctx, "", "for i in $(seq 100); do pgrep -f '[s]leep.1003' && exit 0; sleep 0.1; done; exit 1")
	others, was := Identities(t, 2), b.Identity
	b.Identity = others[1]
	b.Ready(time.Minute)
	if reaches() {
		t.Error("a guest with a certificate that does not verify was believed")
	}
	a.Identity = others[0]
	a.Ready(time.Minute)
	if !reaches() {
		t.Error("guests with new certificates do not reach each other")
	}
	if was.Epoch != b.Identity.Epoch {
		t.Error("it was started anew")
	}
	a.MustRun(ctx, "", "pgrep -f '[s]leep.1003'") // a process that was started before continues
}

// mpiLaunchers are the commands that start a program on four ranks, by the launcher that an image has: as runs do it, and as
// users may do it.
var mpiLaunchers = []struct{ program, command string }{
	{"mpirun.openmpi", `OMPI_MCA_plm_rsh_agent=/run/watari/watari-guest-rsh PRTE_MCA_plm_ssh_agent=/run/watari/watari-guest-rsh \
		PRTE_MCA_prte_if_exclude=lo mpirun -np 4 --map-by node --oversubscribe --hostfile /run/watari/hostfile`},
	{"mpirun.openmpi", `PRTE_MCA_plm_ssh_agent="watari-guest rsh" PRTE_MCA_prte_if_exclude=lo \
		mpirun -np 4 --map-by node --oversubscribe --hostfile /run/watari/hostfile --mca plm_rsh_agent "watari-guest rsh"`},
	{"mpiexec.hydra", `HYDRA_LAUNCHER=rsh HYDRA_LAUNCHER_EXEC=/run/watari/watari-guest-rsh HYDRA_HOST_FILE=/run/watari/hostfile.hydra \
		mpiexec.hydra -n 4`},
}

func TestMPIOverTwoGuests(t *testing.T) {
	ctx, a, _ := pair(t)
	tried := 0
	for _, launcher := range mpiLaunchers {
		if a.MustRun(ctx, "watari", "type "+launcher.program+" >/dev/null 2>&1 && echo yes || echo no") == "no\n" {
			continue
		}
		tried++
		begun := time.Now()
		out := a.MustRun(ctx, "watari", launcher.command+` sh -c 'echo rank on $(hostname)'`)
		t.Logf("%s: 4 ranks took %v: %q", launcher.program, time.Since(begun), out)
		if strings.Count(out, "rank on md-0\n") != 2 || strings.Count(out, "rank on md-1\n") != 2 {
			t.Errorf("%s: ranks ran as %q", launcher.command, out)
		}
	}
	if tried == 0 {
		t.Skip("the image has neither mpirun.openmpi (Debian package openmpi-bin) nor mpiexec.hydra (mpich)")
	}
}

func TestAProcessThatTheKernelEndsForWantOfMemoryIsTold(t *testing.T) {
	image := Image(t)
	// Linux 6.1 reclaims the pages of programs for two minutes before it ends one.
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	g := Boot(t, image, Identities(t, 1)[0], 0, filepath.Join(t.TempDir(), "net"))
	if d := g.Ready(time.Minute); d.GetOutOfMemory() != nil {
		t.Errorf("at first: %v", d.GetOutOfMemory())
	}
	r, err := g.Run(ctx, "watari", "head -c 1000000000 /dev/zero | tail; exit 3") // tail keeps input without line ends in memory
	if err != nil || r.Code != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	g.Until(ctx, "say that memory ran out", func() error {
		d, err := g.Guests.Describe(ctx, connect.NewRequest(&v1.DescribeRequest{}))
		if err != nil {
			return err
		}
		o := d.Msg.GetOutOfMemory()
		age := d.Msg.GetNow().AsTime().Sub(o.GetAt().AsTime())
		if o.GetKills() == 0 || o.GetProcess() != "tail" || o.GetPid() == 0 || o.GetBytes() < 64<<20 || age < 0 || age > time.Minute {
			return fmt.Errorf("it says %v, now %v", o, d.Msg.GetNow().AsTime())
		}
		t.Logf("%v, %v ago", o, age)
		return nil
	})
}

// homeReady waits until a guest reports that the shared home is ready.
func homeReady(ctx context.Context, g *Guest) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	g.Until(ctx, "wait for the home of", func() error {
		d, err := g.Guests.Describe(ctx, connect.NewRequest(&v1.DescribeRequest{}))
		if err == nil && d.Msg.GetHome() != "ready" {
			err = errors.New(d.Msg.GetHome())
		}
		return err
	})
}

func TestSharedHome(t *testing.T) {
	ctx, a, b := pair(t)
	begun := time.Now()
	homeReady(ctx, a)
	t.Logf("served after %v", time.Since(begun))
	homeReady(ctx, b)
	t.Logf("mounted after %v", time.Since(begun))
	// Each guest sees the other's changes at once. Files belong to the user, whichever process of a guest makes them.
	for i, writer := range []*Guest{a, b} {
		reader := []*Guest{b, a}[i]
		for _, user := range []string{"watari", ""} {
			name := fmt.Sprintf("/home/watari/runs/r%d%s/file", i, user)
			if r, err := reader.Run(ctx, "watari", "cat "+name); err != nil || r.Code == 0 {
				t.Errorf("%s is there before it is made: %v, %v", name, r, err)
			}
			writer.MustRun(ctx, user, "mkdir -p $(dirname "+name+") && echo text > "+name+" && chmod 644 "+name)
			if out := reader.MustRun(ctx, "watari", "cat "+name); out != "text\n" {
				t.Errorf("%s: %q", name, out)
			}
			if out := reader.MustRun(ctx, "watari", "stat -c %u:%a "+name); out != "1000:644\n" && !(writer == a && user == "") {
				t.Errorf("%s belongs to %q", name, out)
			}
		}
	}
	begun = time.Now()
	b.MustRun(ctx, "watari", "head -c 20000000 /dev/urandom > big && sha256sum big > sum")
	t.Logf("20 MB written in %v", time.Since(begun))
	a.MustRun(ctx, "watari", "sha256sum -c sum")
	// Locks work across guests (MPI-IO needs them), and a deleted file remains while it is open.
	lock := `perl -MFcntl -e 'open F, "+<", "big"; $l = pack "s s x4 q q i x4", F_WRLCK, 0, 0, 0, 0; fcntl(F, F_SETLK, $l) or exit 1; system @ARGV' -- `
	a.MustRun(ctx, "watari", `mkfifo /tmp/hold; (`+lock+`sh -c 'touch locked; cat /tmp/hold' >/dev/null 2>&1 &)
		until test -e locked; do sleep 0.1; done`)
	b.MustRun(ctx, "watari", "test -e locked && ! "+lock+"true")
	a.MustRun(ctx, "watari", "echo > /tmp/hold; sleep 0.2; "+lock+"true")
	b.MustRun(ctx, "watari", lock+"true && exec 3<big && rm big && sha256sum <&3 | cut -c1-64 > again && cut -c1-64 sum > once && cmp once again")
	// An address that is not a peer of the cluster gets no access.
	if r, err := b.Run(ctx, "", "ip address add 10.77.0.99/32 dev eth0 && mkdir -p /mnt/x && mount -t nfs4 -o vers=4.2,addr=10.77.0.10,clientaddr=10.77.0.99 10.77.0.10:/ /mnt/x"); err == nil && r.Code == 0 {
		t.Log("mount from a peer's second address: the kernel chose the peer's own")
	}
}
