package api

// check.go - what a request must look like, and messages that name what exists.

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	v1 "watari/api/watariv1"
	"watari/compatibility"
	"watari/manager/store"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
)

// Bounds of what can be asked for.
const (
	// maxGuests of a cluster, which is made in one etcd transaction. The embedded etcd takes twice as many.
	maxGuests      = 1000
	maxVCPUs       = 512
	minMemoryBytes = 64 << 20
	maxMemoryBytes = 16 << 40
	maxRanks       = 1 << 20
	maxRunSpec     = 256 << 10 // bytes: a run's record is rewritten whole at each change
	maxUnended     = 200       // runs of a cluster, each of which is driven by itself
	maxRequestID   = 64        // bytes
)

var nameRule = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)

// cpuRule is what names of CPU models look like.
var cpuRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// checkName holds names of new objects to types.proto's rule.
func checkName(kind, name string) error {
	if nameRule.MatchString(name) {
		return nil
	}
	if name == "" {
		return fail(connect.CodeInvalidArgument, "the %s has no name", kind)
	}
	return fail(connect.CodeInvalidArgument, "%q cannot be a %s's name: 1 to 40 of a-z, 0-9 and -, beginning with a letter and ending with a letter or digit", name, kind)
}

// missing says that there is no such object, and which there are.
func missing[T any](kind, name string, there map[string]T) error {
	names := slices.Sorted(maps.Keys(there))
	if len(names) == 0 {
		return fail(connect.CodeNotFound, "there is no %s %q; there is none at all", kind, name)
	}
	const shown = 20
	more := ""
	if len(names) > shown {
		names, more = names[:shown], ", ..."
	}
	return fail(connect.CodeNotFound, "there is no %s %q; there are: %s%s", kind, name, strings.Join(names, ", "), more)
}

// own narrows objects to those the caller may see.
func own[T store.Object](c caller, all map[string]T) map[string]T {
	if c.admin {
		return all
	}
	mine := map[string]T{}
	for name, o := range all {
		if c.owns(o.GetMeta()) {
			mine[name] = o
		}
	}
	return mine
}

// find returns an object that the caller may see; another's does not exist for them.
func find[T store.Object](c caller, kind, name string, all map[string]T) (T, error) {
	o, found := all[name]
	if !found || !c.owns(o.GetMeta()) {
		return o, missing(kind, name, own(c, all))
	}
	return o, nil
}

// sites lists the sites of the hosts.
func sites(snap *store.Snapshot) map[string]bool {
	found := map[string]bool{}
	for _, h := range snap.Hosts {
		if site := h.GetInfo().GetSite(); site != "" {
			found[site] = true
		}
	}
	return found
}

// checkSpec holds a cluster's specification to the bounds and completes it, so that equal ones are equal.
func checkSpec(spec *v1.ClusterSpec) error {
	bad := func(format string, a ...any) error { return fail(connect.CodeInvalidArgument, format, a...) }
	shape := spec.GetShape()
	switch {
	case spec.GetGuests() < 1 || spec.Guests > maxGuests:
		return bad("%d guests: a cluster has 1 to %d", spec.GetGuests(), maxGuests)
	case shape.GetVcpus() < 1 || shape.Vcpus > maxVCPUs:
		return bad("%d vCPUs: a guest has 1 to %d", shape.GetVcpus(), maxVCPUs)
	case shape.MemoryBytes < minMemoryBytes || shape.MemoryBytes > maxMemoryBytes:
		return bad("%s of memory: a guest has %s to %s", humanize.IBytes(shape.MemoryBytes), humanize.IBytes(minMemoryBytes), humanize.IBytes(maxMemoryBytes))
	case shape.MemoryBytes%(1<<20) != 0:
		return bad("%s bytes of memory are no whole number of MiB; give one, say %d MiB", humanize.Comma(int64(shape.MemoryBytes)), shape.MemoryBytes>>20)
	case spec.Image == "":
		return bad("the cluster has no image")
	case v1.Spread_name[int32(spec.Spread)] == "":
		return bad("unknown spread %d", spec.Spread)
	case spec.Cpu != "" && !cpuRule.MatchString(spec.Cpu):
		return bad("%q cannot be a CPU: use baseline, host, or a named model such as EPYC-Rome", spec.Cpu)
	}
	if spec.Cpu == "baseline" {
		spec.Cpu = compatibility.Baseline
	}
	slices.Sort(spec.Sites)
	spec.Sites = slices.Compact(spec.Sites)
	return nil
}

// differences says in what two specifications differ, for people.
func differences(have, want *v1.ClusterSpec) string {
	var d []string
	add := func(differ bool, format string, a ...any) {
		if differ {
			d = append(d, fmt.Sprintf(format, a...))
		}
	}
	add(have.GetGuests() != want.GetGuests(), "it has %s, not %d", english.Plural(int(have.GetGuests()), "guest", ""), want.GetGuests())
	add(have.GetShape().GetVcpus() != want.GetShape().GetVcpus(), "its guests have %s, not %d",
		english.Plural(int(have.GetShape().GetVcpus()), "vCPU", ""), want.GetShape().GetVcpus())
	add(have.GetShape().GetMemoryBytes() != want.GetShape().GetMemoryBytes(), "its guests have %d MiB of memory, not %d MiB",
		have.GetShape().GetMemoryBytes()>>20, want.GetShape().GetMemoryBytes()>>20)
	add(have.GetImage() != want.GetImage(), "its image is %s, not %s", have.GetImage(), want.GetImage())
	add(!slices.Equal(have.GetSites(), want.GetSites()), "its sites are %s, not %s", listOr(have.GetSites(), "any"), listOr(want.GetSites(), "any"))
	add(have.GetSpread() != want.GetSpread(), "its spread is %s, not %s", spreadName(have.GetSpread()), spreadName(want.GetSpread()))
	add(have.GetNoFork() != want.GetNoFork(), "its guests are started %s, not %s", startName(have.GetNoFork()), startName(want.GetNoFork()))
	add(have.GetCpu() != want.GetCpu(), "its guests' CPU is %s, not %s", cmp.Or(have.GetCpu(), "baseline"), cmp.Or(want.GetCpu(), "baseline"))
	return strings.Join(d, "; ")
}

func listOr(list []string, empty string) string {
	if len(list) == 0 {
		return empty
	}
	return strings.Join(list, " ")
}

func spreadName(s v1.Spread) string {
	switch s {
	case v1.Spread_SPREAD_SITE:
		return "over sites"
	case v1.Spread_SPREAD_HOST:
		return "over hosts"
	}
	return "as the scores say"
}

func startName(noFork bool) string {
	if noFork {
		return "by booting"
	}
	return "by forking"
}
