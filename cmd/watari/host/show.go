package host

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
	"watari/internal/printable"
)

func newShow(env *cli.Env) *cobra.Command {
	return cli.Show[*v1.Host]{Word: "HOST", Short: "Show a host: problems, why a policy keeps guests from it, cores, memory nodes, acceleration and why, load, guests, trust group",
		Example: "  watari host show a1", Names: cli.Hosts, Get: get, Describe: describe}.Command(env)
}

// reasonLimit is the longest reason of a withdrawal that is shown, in characters.
const reasonLimit = 500

func cores(info *v1.HostInfo) string {
	text := fmt.Sprintf("%d, %s", info.GetCores(), info.GetCpuModel())
	if speed := info.GetCoreSpeed(); speed > 0 {
		text += fmt.Sprintf("; speed %v each", speed)
	}
	if share := info.GetCpuShare(); share > 0 {
		text += fmt.Sprintf("; limited to the time of %v", share)
	}
	return text
}

func describe(w io.Writer, env *cli.Env, h *v1.Host) {
	const unknown = "unknown" // a version that libvirt has not yet told the agent
	info, load := h.GetInfo(), h.GetLoad()
	now := ""
	if load != nil {
		now = fmt.Sprintf("%.1f of %v cores busy, %s of memory and %s of disk free", load.GetCpuBusy(), cmp.Or(info.GetCpuShare(), float64(info.GetCores())),
			output.Size(load.GetMemoryAvailableBytes()), output.Size(load.GetDiskAvailableBytes()))
	}
	seen := ""
	if h.GetLastSeen() != nil {
		seen = output.Age(env.Now(), h.GetLastSeen()) + " ago"
	}
	acceleration := strings.ToUpper(output.State(info.GetAcceleration().GetKind()))
	if reason := info.GetAcceleration().GetReason(); reason != "" {
		acceleration += ": " + reason
	}
	var volumes []string
	for _, v := range h.GetVolumes() {
		volumes = append(volumes, v.GetName()+" "+v.GetMessage())
	}
	output.Fields(w,
		[2]string{"name", h.GetMeta().GetName()},
		[2]string{"site", info.GetSite()},
		[2]string{"state", output.State(h.GetState())},
		[2]string{"withdrawn", withdrawn(env.Now(), h.GetWithdrawn())},
		[2]string{"quarantine", quarantined(env.Now(), h.GetQuarantine())},
		[2]string{"agent seen", seen},
		[2]string{"problems", strings.Join(h.GetProblems(), "\n")},
		[2]string{"cores", cores(info)},
		[2]string{"memory", output.Size(info.GetMemoryBytes())},
		[2]string{"nodes", nodes(info.GetNumaNodes())},
		[2]string{"acceleration", acceleration},
		[2]string{"guests' CPU", guestCPU(info.GetGuestSupport())},
		[2]string{"machine types", machines(info.GetGuestSupport().GetMachines())},
		[2]string{"guests run", confinement(info.GetConfinement())},
		[2]string{"load", now},
		[2]string{"moves", output.Moves(h.GetSample())},
		[2]string{"guests", strings.Join(h.GetGuests(), ", ")},
		[2]string{"volumes left", strings.Join(volumes, "\n")},
		[2]string{"address", address(info)},
		[2]string{"relays", relays(env.Now(), h)},
		[2]string{"versions", fmt.Sprintf("agent %s, libvirt %s, QEMU %s, Linux %s", info.GetAgentVersion(), cmp.Or(info.GetLibvirtVersion(), unknown), cmp.Or(info.GetQemuVersion(), unknown), info.GetKernelVersion())},
		[2]string{"spare", spare(h)},
		[2]string{"trust group", cmp.Or(h.GetTrustGroup(), "none: it makes all its templates itself")},
		[2]string{"boot", info.GetBootId()},
	)
}

func address(info *v1.HostInfo) string {
	text := fmt.Sprintf("%s, MTU %d", info.GetLanAddress(), info.GetMtu())
	if info.GetDialOnly() {
		text += "; it only dials out"
	}
	return text
}

// relays lists the hosts that relay for this host, and the pairs of hosts between which it relays, one per line.
func relays(now time.Time, h *v1.Host) string {
	var lines []string
	for _, r := range h.GetRelayed() {
		if r.GetOther() != "" {
			lines = append(lines, fmt.Sprintf("relays between %s and %s since %s", r.GetPeer(), r.GetOther(), output.Time(now, r.GetSince())))
		} else {
			lines = append(lines, fmt.Sprintf("reaches %s through %s since %s: %s", r.GetPeer(), r.GetRelay(), output.Time(now, r.GetSince()), r.GetReason()))
		}
	}
	return strings.Join(lines, "\n")
}

// withdrawn returns which policies keep guests from the host, one per line: "harvest since 14:05:12: the owner is back".
func withdrawn(now time.Time, all []*v1.Withdrawal) string {
	var lines []string
	for _, w := range all {
		lines = append(lines, fmt.Sprintf("%s since %s: %s", w.GetPolicy(), output.Time(now, w.GetSince()), printable.Line(w.GetReason(), reasonLimit)))
	}
	return strings.Join(lines, "\n")
}

// confinement returns QEMU's user and security driver: "as libvirt-qemu, confined by apparmor".
func confinement(c *v1.Confinement) string {
	switch {
	case c == nil:
		return ""
	case c.GetSecurityModel() == "":
		return "as " + c.GetUser() + ", not confined by a security driver" + accepted(c)
	case c.GetUser() == "root":
		return "as root, confined by " + c.GetSecurityModel() + accepted(c)
	}
	return "as " + c.GetUser() + ", confined by " + c.GetSecurityModel()
}

func accepted(c *v1.Confinement) string {
	if c.GetUnconfinedAllowed() {
		return " (accepted: --allow-unconfined)"
	}
	return " (no new guests: --allow-unconfined accepts this)"
}

// guestCPU returns the CPU that guests can have, and the named models, one per line.
func guestCPU(s *v1.GuestSupport) string {
	var usable []string
	for _, m := range s.GetModels() {
		if m.Usable {
			usable = append(usable, m.Name)
		}
	}
	lines := []string{output.CPU(s.GetCpu())}
	if len(usable) > 0 {
		lines = append(lines, "named models: "+strings.Join(usable, ", "))
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// machines returns the oldest and the newest machine type for guests.
func machines(list []string) string {
	switch len(list) {
	case 0:
		return ""
	case 1:
		return list[0]
	}
	return list[0] + " to " + list[len(list)-1]
}

// nodes returns the memory nodes, one per line: "0: CPUs 0-3, 16 GiB".
func nodes(all []*v1.NUMANode) string {
	var lines []string
	for _, node := range all {
		lines = append(lines, fmt.Sprintf("%d: CPUs %s, %s", node.GetId(), ranges(node.GetCpus()), output.Size(node.GetMemoryBytes())))
	}
	return strings.Join(lines, "\n")
}

// ranges abbreviates ascending numbers: "0-3,8".
func ranges(numbers []uint32) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		part := fmt.Sprint(numbers[i])
		if j > i {
			part += fmt.Sprintf("-%d", numbers[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// spare states that a host is kept free; empty: it is not.
func spare(h *v1.Host) string {
	if h.GetSpare() {
		return "takes only guests that are lost elsewhere"
	}
	return ""
}

// quarantined describes the state of a host that is not trusted any more; empty: it is trusted.
func quarantined(now time.Time, q *v1.Quarantine) string {
	switch {
	case q == nil:
		return ""
	case q.CutOff != nil:
		return "cut off " + output.Age(now, q.CutOff) + " ago"
	}
	return "it is cut off when its guests have left, at " + q.Until.AsTime().Local().Format(time.TimeOnly) + " at the latest"
}
