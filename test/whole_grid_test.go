package test

// whole_grid_test.go - volumes, checkpoints, leases and an owner's return on whole hosts: with KVM, systemd's control groups
// and AppArmor's profiles.

import (
	"fmt"
	"strings"
	"testing"
)

// kvmKeeps saves a cluster with its volume, moves the volume, and restores the cluster.
func kvmKeeps(t *testing.T) {
	home := func(guest, do string) string {
		t.Helper()
		return must(t, "guest", "exec", "-u", "watari", guest, "--", "sh", "-c", "cd; "+do)
	}
	home("kvm-0", "echo kept >before; sync")
	made := copied(t, checkpointed(t, "kvm").Meta.Name)
	t.Logf("checkpoint %s: guests were paused for %d ms", made.Meta.Name, made.StoodMs)
	from := volumeNamed(t, "kvm-home").Host
	to := map[string]string{"a1": "a2", "a2": "a1"}[from]
	must(t, "volume", "move", "kvm-home", "--host", to)
	if host := volumeNamed(t, "kvm-home").Host; host != to {
		t.Errorf("the volume is on host %s, want %s", host, to)
	}
	if seen := home("kvm-1", "cat before; echo lost >after; sync"); seen != "kept\n" {
		t.Errorf("on the moved volume, the other guest sees %q", seen)
	}
	must(t, "checkpoint", "restore", made.Meta.Name)
	settled(t, "kvm", 2)
	if seen := home("kvm-1", "ls before after 2>/dev/null; true"); seen != "before\n" {
		t.Errorf("after the restore, the home has %q, want only the file that is older than the checkpoint", seen)
	}
}

// kvmAgentsRestart restarts and kills both agents by systemd. Guests with leases continue: the watchdog outlives the agent.
func kvmAgentsRestart(t *testing.T) {
	unmarked := mark(t, "kvm-0", "kvm-1")
	for _, command := range []string{"systemctl restart watari-agent", "systemctl kill --signal=KILL --kill-whom=main watari-agent"} {
		for _, host := range hosts {
			if out, err := onHost(t, host, "sh", "-c", command); err != nil {
				t.Fatalf("host %s: %s: %v: %s", host, command, err, out)
			}
		}
		settled(t, "kvm", 2)
	}
	noneRestarted(t, unmarked)
}

// kvmOwnerComesBack lends a guest's host out. Until the guest has left, systemd's control groups of its QEMU are limited.
func kvmOwnerComesBack(t *testing.T) {
	unmarked := mark(t, "kvm-0", "kvm-1")
	host := guestNamed(t, "kvm-0").Host
	applyPolicy(t, fmt.Sprintf(harvestPolicy, fmt.Sprintf("host.name == %q", host))+"  bandwidth: 4MiB/s\n")
	leave := owner(t, host, "types")
	withdrawn(t, host, true)
	const limits = "cd /sys/fs/cgroup/machine.slice/machine-qemu*watari?x2dkvm?x2d0.scope && cat cpu.weight libvirt/vcpu0/cpu.max"
	until(t, settle, "the guest is slowed down", func() (bool, string) {
		out, err := onHost(t, host, "sh", "-c", limits)
		return err == nil && (out == "1\n2000 10000\n" || out == "1\n1000 200000\n"), fmt.Sprint(out, err) // slowed down, or stopped after 30 s
	})
	left(t, "kvm-0", host)
	leave()
	withdrawn(t, host, false)
	next := guestNamed(t, "kvm-0").Host
	until(t, settle, "the guest has its full share again", func() (bool, string) {
		out, err := onHost(t, next, "sh", "-c", limits)
		return err == nil && strings.HasPrefix(out, "100\nmax "), fmt.Sprint(out, err)
	})
	settled(t, "kvm", 2)
	noneRestarted(t, unmarked)
}

// kvmHostIsLost switches off a host with all guests for good. When their leases are over, the cluster goes on from its
// checkpoint on the other host, which has the volume.
func kvmHostIsLost(t *testing.T) {
	lost := guestNamed(t, "kvm-0").Host
	other := map[string]string{"a1": "a2", "a2": "a1"}[lost]
	if guestNamed(t, "kvm-1").Host != lost {
		must(t, "migrate", "kvm-1", "--to", lost)
	}
	if volumeNamed(t, "kvm-home").Host != other {
		must(t, "volume", "move", "kvm-home", "--host", other)
	}
	made := copied(t, checkpointed(t, "kvm").Meta.Name)
	start := loses(t, lost)
	until(t, settle, "the cluster goes on from checkpoint "+made.Meta.Name, func() (bool, string) {
		out := must(t, "events")
		return strings.Contains(out, "goes on from checkpoint "+made.Meta.Name), out
	})
	for _, name := range []string{"kvm-0", "kvm-1"} {
		until(t, settle, "guest "+name+" is ready on host "+other, func() (bool, string) {
			g := guestNamed(t, name)
			return g.Ready && g.Host == other, fmt.Sprintf("%+v", g)
		})
	}
	start()
	hostsReady(t)
	settled(t, "kvm", 2)
}
