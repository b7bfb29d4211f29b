// cable.go makes substitutes for two machines: two network namespaces joined by one cable, which may lose packets, or
// by two cables.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The paths between two processes.
const (
	oneMachine = "one machine"
	whole      = "cable"
	lossy      = "cable, 1 % lost"
	twoCables  = "two cables"
)

// cable joins two network namespaces by eth0, and by eth1 if there are two cables. The launchers' own connections use
// ctl0, which never loses packets: only the messages are measured.
type cable struct {
	hosts [2]string // names of the namespaces, and host names inside them
	agent string    // program that enters a namespace, in place of ssh
}

const (
	control = "198.18.6.0/24"
	// MPI considers processes to be on different machines if the host names differ.
	front = `hostname "$0" && exec "$@"`
	agent = `#!/bin/sh
# Stands for ssh: [OPTION...] HOST COMMAND.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
`
	// Each side drops one in a hundred incoming packets.
	loss = `table inet lossy {
	chain input {
		type filter hook input priority 0;
		iifname "eth0" numgen random mod 100 < 1 drop
	}
}
`
)

// lacking returns what the machine lacks for a cable; "" if nothing.
func lacking(path string) string {
	if os.Geteuid() != 0 {
		return "root, for network namespaces"
	}
	needed := map[string]string{"ip": "iproute2", "unshare": "util-linux", "hostname": "hostname"}
	if path != whole {
		needed["ethtool"] = "ethtool"
	}
	if path == lossy {
		needed["nft"] = "nftables"
	}
	var missing []string
	for program, name := range needed {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, fmt.Sprintf("%s (Debian package %s)", program, name))
		}
	}
	slices.Sort(missing)
	return strings.Join(missing, ", ")
}

// skip records and prints why a path is not measured.
func (b *bench) skip(path, why string) {
	fmt.Printf("== SKIPPED: %s: %s\n", path, why)
	b.skipped[path] = why
}

// layCables makes the cables that are possible here, and records the others as skipped. The caller must call
// removeCables in any case.
func (b *bench) layCables(ctx context.Context) error {
	b.cables, b.skipped = map[string]*cable{}, map[string]string{}
	if lacking(whole) == "" {
		if err := removeLeft(ctx); err != nil {
			return err
		}
	}
	agentFile := filepath.Join(b.programs, "enter")
	if err := os.WriteFile(agentFile, []byte(agent), 0o755); err != nil {
		return err
	}
	for carrier, lines := range linkFiles {
		if err := os.WriteFile(b.linkFile(carrier), []byte(lines), 0o644); err != nil {
			return err
		}
	}
	for i, path := range []string{whole, lossy, twoCables} {
		c := &cable{agent: agentFile}
		for side := range c.hosts {
			c.hosts[side] = fmt.Sprintf("pm-bench-%d-%c", os.Getpid(), 'a'+2*i+side)
		}
		why := lacking(path)
		if why != "" {
			why = "this machine lacks " + why
		} else {
			if err := c.lay(ctx, path); err != nil {
				if ctx.Err() != nil {
					return err
				}
				why = err.Error() // root lacks a right, or the kernel a feature
			}
		}
		if why != "" {
			b.skip(path, why)
			continue
		}
		b.cables[path] = c
	}
	return nil
}

func (c *cable) lay(ctx context.Context, path string) error {
	second := "ctl0"
	if path == twoCables {
		second = "eth1"
	}
	all := [][]string{{"ip", "netns", "add", c.hosts[0]}, {"ip", "netns", "add", c.hosts[1]}}
	for _, end := range []struct{ name, network string }{{"eth0", "198.18.5."}, {second, "198.18.6."}} {
		all = append(all, []string{"ip", "link", "add", end.name, "netns", c.hosts[0], "type", "veth", "peer", "name", end.name, "netns", c.hosts[1]})
		for side, host := range c.hosts {
			all = append(all, []string{"ip", "-n", host, "addr", "add", fmt.Sprint(end.network, side+1, "/24"), "dev", end.name},
				[]string{"ip", "-n", host, "link", "set", end.name, "up"})
		}
	}
	for _, host := range c.hosts {
		all = append(all, []string{"ip", "-n", host, "link", "set", "lo", "up"})
		all = append(all, worsen(host, path)...)
	}
	for _, command := range all {
		if _, err := run(ctx, command[0], command[1:]...); err != nil {
			return err
		}
	}
	return c.waitUntilUp(ctx)
}

// worsen returns the commands that make one end of a cable lose packets, or that limit two cables to less bandwidth
// than the CPUs can send.
func worsen(host, path string) [][]string {
	in := []string{"ip", "netns", "exec", host}
	// Without offloads, packets are segmented before the cable, so the rules apply to packets as on a wire.
	cut := func(name string) []string {
		return append(slices.Clone(in), "ethtool", "-K", name, "tx-udp-segmentation", "off", "tso", "off", "gso", "off", "gro", "off")
	}
	limit := func(name string) []string {
		return append(slices.Clone(in), "tc", "qdisc", "add", "dev", name, "root", "tbf", "rate", "200mbit", "burst", "64k", "latency", "20ms")
	}
	switch path {
	case lossy:
		return [][]string{cut("eth0"), append(in, "nft", loss)}
	case twoCables:
		return [][]string{cut("eth0"), limit("eth0"), cut("eth1"), limit("eth1")}
	}
	return nil
}

// waitUntilUp returns when both ends are up. Before that, libfabric would choose another interface.
func (c *cable) waitUntilUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, host := range c.hosts {
		for {
			state, err := run(ctx, "ip", "-n", host, "-br", "link", "show", "up", "type", "veth")
			if err != nil {
				return err
			}
			if strings.Count(state, " UP ") == 2 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// in returns the first words of a command that runs on one side.
func (c *cable) in(side int) []string {
	return []string{"ip", "netns", "exec", c.hosts[side], "unshare", "--uts", "sh", "-c", front, c.hosts[side]}
}

// removeCables removes what layCables has made, even after ctx has ended.
func (b *bench) removeCables(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return remove(ctx, fmt.Sprintf("pm-bench-%d-", os.Getpid()), func(int) bool { return true })
}

// removeLeft removes what killed runs have left.
func removeLeft(ctx context.Context) error {
	self, _ := os.Readlink("/proc/self/exe")
	return remove(ctx, "pm-bench-", func(pid int) bool {
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err != nil || filepath.Base(program) != filepath.Base(self)
	})
}

var namespace = regexp.MustCompile(`^pm-bench-(\d+)-[a-f]$`)

// remove removes the namespaces with such names whose maker is gone, and ends the processes in them.
func remove(ctx context.Context, prefix string, gone func(pid int) bool) error {
	list, err := run(ctx, "ip", "netns", "list")
	if err != nil {
		return nil // then there are no namespaces
	}
	var errs []error
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		parts := namespace.FindStringSubmatch(name)
		if parts == nil || !strings.HasPrefix(name, prefix) {
			continue
		}
		if pid, _ := strconv.Atoi(parts[1]); !gone(pid) {
			continue
		}
		left, err := endAll(ctx, name)
		if pid := strconv.Itoa(os.Getpid()); left != "" || parts[1] != pid {
			fmt.Printf("== removing what was left behind: namespace %s; processes in it: %s\n", name, cmp.Or(left, "none"))
		}
		_, failed := run(ctx, "ip", "netns", "del", name)
		errs = append(errs, err, failed)
	}
	return errors.Join(errs...)
}

// endAll ends the processes in a namespace, and returns their ids.
func endAll(ctx context.Context, name string) (string, error) {
	left, err := run(ctx, "ip", "netns", "pids", name)
	for pid := range strings.FieldsSeq(left) {
		if number, err := strconv.Atoi(pid); err == nil {
			if process, err := os.FindProcess(number); err == nil {
				process.Kill() // an error means that it has ended meanwhile
			}
		}
	}
	return strings.Join(strings.Fields(left), " "), err
}
