// cable.go makes what stands for two machines: two network namespaces joined by a cable, which may lose packets, or by two.
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

// The paths by which two processes reach each other.
const (
	oneMachine = "one machine"
	whole      = "cable"
	lossy      = "cable, 1 % lost"
	twoCables  = "two cables"
)

// cable joins two network namespaces by eth0. The launchers' own connections go by ctl0, which is never lossy: what is
// measured is what carries messages. Where there are two, eth1 is in its place.
type cable struct {
	hosts [2]string // names of the namespaces, and of the machines for who enters them
	agent string    // program that enters one, as ssh would
}

const (
	control = "198.18.6.0/24"
	// An MPI takes processes to be on different machines where those have different names.
	front = `hostname "$0" && exec "$@"`
	agent = `#!/bin/sh
# Stands for ssh: [OPTION...] HOST COMMAND.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
`
	// Each side drops a hundredth of what comes.
	loss = `table inet lossy {
	chain input {
		type filter hook input priority 0;
		iifname "eth0" numgen random mod 100 < 1 drop
	}
}
`
)

// lacking names what the machine has not that a cable needs; "": nothing.
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

// skip notes, and says, why a path is not measured.
func (b *bench) skip(path, why string) {
	fmt.Printf("== SKIPPED: %s: %s\n", path, why)
	b.skipped[path] = why
}

// layCables makes those that can be made here, and notes the others as skipped. removeCables is to be called in any case.
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
				why = err.Error() // root without the right to do so, or a kernel without
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

// worsen gives the commands that have an end of a cable lose packets, or those of two cables carry less than processors
// can send.
func worsen(host, path string) [][]string {
	in := []string{"ip", "netns", "exec", host}
	// Without offloads packets are cut before the cable, so that it is those on the wire that are lost or wait.
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

// waitUntilUp returns when both ends know that they are plugged in; before that libfabric takes another interface.
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

// in is a command's beginning that has it run on one side.
func (c *cable) in(side int) []string {
	return []string{"ip", "netns", "exec", c.hosts[side], "unshare", "--uts", "sh", "-c", front, c.hosts[side]}
}

// removeCables takes away what layCables made, whether or not ctx has ended.
func (b *bench) removeCables(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return remove(ctx, fmt.Sprintf("pm-bench-%d-", os.Getpid()), func(int) bool { return true })
}

// removeLeft takes away what runs that were killed have left.
func removeLeft(ctx context.Context) error {
	self, _ := os.Readlink("/proc/self/exe")
	return remove(ctx, "pm-bench-", func(pid int) bool {
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err != nil || filepath.Base(program) != filepath.Base(self)
	})
}

var namespace = regexp.MustCompile(`^pm-bench-(\d+)-[a-f]$`)

// remove takes away the namespaces of such names whose maker is gone, and ends the processes in them.
func remove(ctx context.Context, prefix string, gone func(pid int) bool) error {
	list, err := run(ctx, "ip", "netns", "list")
	if err != nil {
		return nil // then there are none
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

// endAll ends the processes in a namespace, and tells their numbers.
func endAll(ctx context.Context, name string) (string, error) {
	left, err := run(ctx, "ip", "netns", "pids", name)
	for pid := range strings.FieldsSeq(left) {
		if number, err := strconv.Atoi(pid); err == nil {
			if process, err := os.FindProcess(number); err == nil {
				process.Kill() // one that has ended meanwhile is none
			}
		}
	}
	return strings.Join(strings.Fields(left), " "), err
}
