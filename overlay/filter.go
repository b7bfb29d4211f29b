// filter.go is the packet filter, the nftables table "inet watari". Its chains never change. Guests and clusters are
// elements of its sets, so that adding a guest adds elements and not a new ruleset.
package overlay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// ruleset is the whole table. conntrack does not track guests' packets: a guest may move at any moment, and NAT must
// not change its packets.
//
// Inside WireGuard, hosts reach only each other's tunnel port: the first packet of a connection to another port is dropped.
//
// The sets are: taps; sources (tap, address of its guest); prefixes (tap, prefix of its cluster); clusters (their prefixes);
// pairs (prefix, the same prefix: both ends are in one cluster); opened (interfaces on which only the overlay enabled
// forwarding); storage (tap, address of its guest, TCP port of the gateway that leads to storage); sent (tap, destination:
// the bytes that a guest has sent to another; see traffic.go); guarded (the LAN's interface, if the LAN is not trusted:
// guests receive no packets from there). If sent is full, packets pass uncounted.
var ruleset = template.Must(template.New("ruleset").Parse(`
add table inet watari
delete table inet watari
table inet watari {
	set taps { type ifname; {{with .Taps}}elements = { {{.}} }{{end}} }
	set sources { type ifname . ipv4_addr; {{with .Sources}}elements = { {{.}} }{{end}} }
	set prefixes { type ifname . ipv4_addr; flags interval; {{with .Prefixes}}elements = { {{.}} }{{end}} }
	set clusters { type ipv4_addr; flags interval; {{with .Clusters}}elements = { {{.}} }{{end}} }
	set pairs { type ipv4_addr . ipv4_addr; flags interval; {{with .Pairs}}elements = { {{.}} }{{end}} }
	set opened { type ifname; {{with .Opened}}elements = { {{.}} }{{end}} }
	set storage { type ifname . ipv4_addr . inet_service; {{with .Storage}}elements = { {{.}} }{{end}} }
	set guarded { type ifname; {{with .Guarded}}elements = { {{.}} }{{end}} }
	set sent { type ifname . ipv4_addr; flags dynamic,timeout; timeout {{.KeepSent}}s; size {{.MaxSent}}; }

	chain untracked {
		type filter hook prerouting priority raw; policy accept;
		iifname @taps notrack
		ip saddr . ip daddr @pairs notrack
	}
	chain forward {
		type filter hook forward priority filter - 10; policy accept;
		iifname @guarded oifname @taps drop
		iifname @guarded ip saddr @clusters drop
		iifname @taps goto from_guest
		oifname @taps goto to_guest
		iifname "{{.WireGuard}}" goto transit
		oifname "{{.WireGuard}}" goto transit
		ip saddr @clusters goto transit
		ip daddr @clusters goto transit
		iifname @opened drop
	}
	chain from_guest {
		meta nfproto != ipv4 drop
		iifname . ip saddr != @sources drop
		iifname . ip daddr != @prefixes drop
		update @sent { iifname . ip daddr counter }
		oifname @taps accept
		oifname { "{{.LAN}}", "{{.WireGuard}}" } accept
		drop
	}
	chain to_guest {
		meta nfproto != ipv4 drop
		iifname != { "{{.LAN}}", "{{.WireGuard}}" } drop
		oifname . ip saddr @prefixes accept
		icmp type { destination-unreachable, time-exceeded } accept
		drop
	}
	chain transit {
		iifname != { "{{.LAN}}", "{{.WireGuard}}" } drop
		ip saddr . ip daddr @pairs accept
		drop
	}
	chain input {
		type filter hook input priority filter - 10; policy accept;
		iifname @taps goto guest_to_host
		iifname != "lo" ip daddr {{.Gateway}} drop
		iifname "{{.WireGuard}}" goto host_to_host
		ip saddr @clusters drop
	}
	chain host_to_host {
		ip6 saddr != {{.Hosts}} drop
		tcp dport {{.TunnelPort}} accept
		tcp flags & (syn|ack) != syn accept
		icmpv6 type { destination-unreachable, packet-too-big, time-exceeded } accept
		drop
	}
	chain guest_to_host {
		iifname . ip saddr . tcp dport @storage ip daddr {{.Gateway}} accept
		icmp type echo-request ip daddr {{.Gateway}} limit rate 50/second accept
		drop
	}
	chain output {
		type filter hook output priority filter - 10; policy accept;
		oifname @taps goto host_to_guest
		oifname "{{.WireGuard}}" ip6 saddr {{.Hosts}} ip6 daddr {{.Hosts}} meta l4proto { tcp, icmpv6 } accept
		oifname "{{.WireGuard}}" goto host_to_guest
		ip daddr @clusters goto host_to_guest
	}
	chain host_to_guest {
		oifname . ip daddr . tcp sport @storage ip saddr {{.Gateway}} accept
		icmp type { destination-unreachable, time-exceeded, echo-reply } accept
		drop
	}
}
`))

// installFilter writes the whole table in one transaction, with all guests and clusters in its sets.
func (o *Overlay) installFilter(ctx context.Context) error {
	for _, g := range o.guests {
		o.clusters[g.Prefix.Masked()] = true
	}
	var text bytes.Buffer
	if err := ruleset.Execute(&text, o.rulesetData()); err != nil {
		return fmt.Errorf("write packet filter: %w", err)
	}
	if err := nft(ctx, text.String()); err != nil {
		return err
	}
	o.inStorage = o.storageElements()
	o.noteFilter()
	return nil
}

// noteFilter stores a hash of the packet filter that was just written. If the filter cannot be read, the next Check installs
// it again.
func (o *Overlay) noteFilter() { o.filterSum, _ = sumOfFilter() }

// sumOfFilter returns a hash of the table: its flags, its chains and their rules, and its sets' elements. It leaves out the
// elements that the kernel itself adds to count guests' packets. It asks the kernel directly, which takes a few milliseconds.
func sumOfFilter() (sum [sha256.Size]byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("list the packet filter: %w", err)
		}
	}()
	connection, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return sum, err
	}
	defer connection.CloseLasting()
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "watari"}
	hash := sha256.New()
	tables, err := connection.ListTablesOfFamily(table.Family)
	if err != nil {
		return sum, err
	}
	for _, t := range tables {
		if isOwn(t) {
			fmt.Fprintf(hash, "table: flags %x\n", t.Flags) // a dormant table decides nothing
		}
	}
	chains, err := connection.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return sum, err
	}
	for _, chain := range chains {
		if !isOwn(chain.Table) {
			continue
		}
		rules, err := connection.GetRules(table, chain)
		if err != nil {
			return sum, err
		}
		fmt.Fprintf(hash, "chain %s: %s %s %s %s, %d rules\n", chain.Name, chain.Type, known(chain.Hooknum), known(chain.Priority), known(chain.Policy), len(rules))
		for _, rule := range rules {
			for _, e := range rule.Exprs {
				text, err := expr.Marshal(byte(table.Family), e)
				if err != nil {
					return sum, err
				}
				fmt.Fprintf(hash, "%x\n", text)
			}
		}
	}
	sets, err := connection.GetSets(table)
	if err != nil {
		return sum, err
	}
	for _, set := range sets {
		if set.Name == "sent" {
			continue
		}
		elements, err := connection.GetSetElements(set)
		if err != nil {
			return sum, err
		}
		var lines []string
		for _, e := range elements {
			lines = append(lines, fmt.Sprintf("%x %x %v", e.Key, e.KeyEnd, e.IntervalEnd))
		}
		slices.Sort(lines)
		fmt.Fprintf(hash, "set %s: %q\n", set.Name, lines)
	}
	return [sha256.Size]byte(hash.Sum(nil)), nil
}

// known returns the text of a value, if there is one.
func known[T any](value *T) string {
	if value == nil {
		return "none"
	}
	return fmt.Sprint(*value)
}

type rulesetData struct {
	LAN, WireGuard                                   string
	Gateway                                          netip.Addr
	Taps, Sources, Prefixes, Clusters, Pairs, Opened string
	Storage, Guarded                                 string
	KeepSent, MaxSent, TunnelPort                    int
	Hosts                                            netip.Prefix
}

func (o *Overlay) rulesetData() rulesetData {
	var taps, sources, prefixes, clusters, pairs []string
	for _, g := range o.guests {
		tap := TapName(g.UID)
		taps = append(taps, quote(tap))
		sources = append(sources, sourceElement(tap, g))
		prefixes = append(prefixes, prefixElement(tap, g))
	}
	for prefix := range o.clusters {
		clusters = append(clusters, prefix.String())
		pairs = append(pairs, pairElement(prefix))
	}
	d := rulesetData{
		LAN: o.lan.name, WireGuard: Device, Gateway: Gateway,
		Taps: elements(taps), Sources: elements(sources), Prefixes: elements(prefixes),
		Clusters: elements(clusters), Pairs: elements(pairs), KeepSent: int(keepSent.Seconds()), MaxSent: maxSent,
		TunnelPort: o.cfg.TunnelPort, Hosts: hostPrefix,
		Storage: elements(slices.Collect(maps.Keys(o.storageElements()))),
	}
	if f, ok := o.readSavedLAN(); ok && f.Forwarding == "0" {
		d.Opened = quote(o.lan.name)
	}
	if o.guarded {
		d.Guarded = quote(o.lan.name)
	}
	return d
}

func quote(name string) string                 { return `"` + name + `"` }
func sourceElement(tap string, g Guest) string { return quote(tap) + " . " + g.Address.String() }
func prefixElement(tap string, g Guest) string {
	return quote(tap) + " . " + g.Prefix.Masked().String()
}
func pairElement(prefix netip.Prefix) string { return prefix.String() + " . " + prefix.String() }
func setLine(verb, set string, words ...string) string {
	return verb + " element inet watari " + set + " { " + elements(words) + " }\n"
}

func elements(words []string) string {
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// filterGuest makes the filter accept a guest's packets. It corrects the entries of a guest whose addresses have changed.
func (o *Overlay) filterGuest(ctx context.Context, tap string, g Guest) error {
	var text strings.Builder
	old, known := o.guests[g.UID]
	same := known && old.Address == g.Address && old.Prefix.Masked() == g.Prefix.Masked()
	if known && !same {
		text.WriteString(setLine("delete", "sources", sourceElement(tap, old)))
		text.WriteString(setLine("delete", "prefixes", prefixElement(tap, old)))
	}
	if !same {
		text.WriteString(setLine("add", "taps", quote(tap)))
		text.WriteString(setLine("add", "sources", sourceElement(tap, g)))
		text.WriteString(setLine("add", "prefixes", prefixElement(tap, g)))
	}
	prefix := g.Prefix.Masked()
	if !o.clusters[prefix] {
		text.WriteString(clusterLines("add", prefix))
	}
	o.guests[g.UID], o.clusters[prefix] = g, true
	return o.changeFilter(ctx, text.String()+o.storageLines())
}

func (o *Overlay) unfilterGuest(ctx context.Context, tap string, g Guest) error {
	delete(o.guests, g.UID)
	return o.changeFilter(ctx, setLine("delete", "taps", quote(tap))+
		setLine("delete", "sources", sourceElement(tap, g))+
		setLine("delete", "prefixes", prefixElement(tap, g))+o.storageLines())
}

// storageElements returns the elements of set storage for the guests that are plugged in here.
func (o *Overlay) storageElements() map[string]bool {
	set := map[string]bool{}
	for uid, ports := range o.storage {
		g, here := o.guests[uid]
		for _, port := range ports {
			if here {
				set[sourceElement(TapName(uid), g)+" . "+strconv.Itoa(int(port))] = true
			}
		}
	}
	return set
}

// storageLines returns nft commands that update set storage. If they fail, changeFilter installs the whole table.
func (o *Overlay) storageLines() string {
	wanted := o.storageElements()
	var text strings.Builder
	if gone := missing(o.inStorage, wanted, strings.Compare); len(gone) > 0 {
		text.WriteString(setLine("delete", "storage", gone...))
	}
	if added := missing(wanted, o.inStorage, strings.Compare); len(added) > 0 {
		text.WriteString(setLine("add", "storage", added...))
	}
	o.inStorage = wanted
	return text.String()
}

// OpenStorage lets guests, by uid, reach these TCP ports of their gateway, and no others. A guest need not be plugged in
// yet.
func (o *Overlay) OpenStorage(ctx context.Context, ports map[string][]uint16) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.storage = ports
	if len(ports) == 0 && len(o.inStorage) == 0 {
		return nil
	}
	if err := o.prepare(ctx); err != nil {
		return fmt.Errorf("open guests' way to storage: %w", err)
	}
	if err := o.changeFilter(ctx, o.storageLines()); err != nil {
		return fmt.Errorf("open guests' way to storage: %w", err)
	}
	_ = o.guardTaps()
	return nil
}

// filterClusters updates the filter with the clusters of the last NetworkWanted and those of the guests plugged in
// here, and with whether the LAN is guarded.
func (o *Overlay) filterClusters(ctx context.Context, guarded bool) error {
	wanted := maps.Clone(o.wanted)
	for _, g := range o.guests {
		wanted[g.Prefix.Masked()] = true
	}
	var text strings.Builder
	for _, prefix := range missing(o.clusters, wanted, byAddress) {
		text.WriteString(clusterLines("delete", prefix))
	}
	for _, prefix := range missing(wanted, o.clusters, byAddress) {
		text.WriteString(clusterLines("add", prefix))
	}
	switch {
	case guarded && !o.guarded:
		text.WriteString(setLine("add", "guarded", quote(o.lan.name)))
	case !guarded && o.guarded:
		text.WriteString(setLine("delete", "guarded", quote(o.lan.name)))
	}
	o.clusters, o.guarded = wanted, guarded
	return errors.Join(o.saveGuarded(), o.changeFilter(ctx, text.String()))
}

func clusterLines(verb string, prefix netip.Prefix) string {
	return setLine(verb, "clusters", prefix.String()) + setLine(verb, "pairs", pairElement(prefix))
}

// changeFilter applies a change of the sets. If it fails, because another program has changed or flushed the table,
// changeFilter installs the whole table again from o.guests and o.clusters.
func (o *Overlay) changeFilter(ctx context.Context, text string) error {
	if text == "" {
		return nil
	}
	if nft(ctx, text) == nil {
		o.noteFilter()
		return nil
	}
	if err := o.installFilter(ctx); err != nil {
		o.prepared = false // the next call installs the whole table
		return err
	}
	return nil
}

// readGuarded reports whether the LAN is guarded by the filter that an earlier agent installed; known is false if there is no such filter.
func readGuarded(ctx context.Context) (guarded, known bool) {
	out, err := exec.CommandContext(ctx, program("nft"), "list", "set", "inet", "watari", "guarded").Output()
	return err == nil && bytes.Contains(out, []byte("elements")), err == nil
}

// readClusters returns the clusters in the filter that an earlier agent installed; none if the filter cannot be read.
func readClusters(ctx context.Context) []netip.Prefix {
	out, err := exec.CommandContext(ctx, program("nft"), "--json", "list", "set", "inet", "watari", "clusters").Output()
	if err != nil {
		return nil
	}
	return parseClusters(out)
}

// parseClusters parses nft's JSON for a set of IPv4 prefixes.
func parseClusters(data []byte) []netip.Prefix {
	var listing struct {
		Nftables []struct {
			Set *struct {
				Elem []struct {
					Prefix struct {
						Addr netip.Addr `json:"addr"`
						Len  int        `json:"len"`
					} `json:"prefix"`
				} `json:"elem"`
			} `json:"set"`
		} `json:"nftables"`
	}
	if json.Unmarshal(data, &listing) != nil {
		return nil
	}
	var prefixes []netip.Prefix
	for _, item := range listing.Nftables {
		if item.Set == nil {
			continue
		}
		for _, e := range item.Set.Elem {
			if prefix := netip.PrefixFrom(e.Prefix.Addr, e.Prefix.Len); prefix.IsValid() {
				prefixes = append(prefixes, prefix)
			}
		}
	}
	return prefixes
}

// nft runs one transaction.
func nft(ctx context.Context, text string) error {
	command := exec.CommandContext(ctx, program("nft"), "-f", "-")
	command.Stdin = strings.NewReader(text)
	out, err := command.CombinedOutput()
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("packet filter: nft is missing (Debian package nftables): %w", err)
	}
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("packet filter: nft: %s: %w", first, err)
	}
	return nil
}

// program finds a program even if PATH lacks the sbin directories.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return "/usr/sbin/" + name
}
