// check.go monitors what Apply has configured: it detects removed or blocked parts, repairs them if it can, and removes
// everything in the end.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	nl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Check checks the packet filter, guests' taps, the WireGuard device, the routes and the LAN's forwarding, and restores them if another program, or the kernel after the loss
// of a link or an address, has changed them. It also checks whether another filter drops guests' packets and, once a minute, which hosts
// do not answer. It returns one sentence for each problem that it could
// not repair, and for each part that the last Apply left out. It takes some milliseconds.
func (o *Overlay) Check(ctx context.Context) []string {
	problems := o.check(ctx)
	o.problems.Store(&problems)
	return slices.Clone(problems)
}

func (o *Overlay) check(ctx context.Context) []string {
	chains, err := listChains()
	o.mu.Lock()
	defer o.mu.Unlock()
	problems := slices.Clone(o.leftOut)
	if o.relay != nil {
		problems = append(problems, o.relay.Problems()...)
	}
	if err != nil {
		return append(problems, fmt.Sprintf("packet filters cannot be listed: %v", err))
	}
	if len(o.guests) > 0 { // the filter may have been removed while no agent was there, and the manager may be away
		if err := o.prepare(ctx); err != nil {
			problems = append(problems, err.Error())
		}
	}
	if o.prepared {
		if sum, err := sumOfFilter(); err != nil || sum != o.filterSum {
			o.log.Warn("another program has changed or removed the packet filter (nftables table inet watari): installing it again", "error", err)
			if err := o.installFilter(ctx); err != nil {
				problems = append(problems, err.Error())
			}
		}
		if err := o.checkRouter(ctx); err != nil {
			problems = append(problems, err.Error())
		}
		if err := o.guardTaps(); err != nil {
			problems = append(problems, fmt.Sprintf("only the packet filter isolates guests, and they are not isolated while another program changes it: %v; "+
				"the agent needs the capability CAP_BPF, and the kernel CONFIG_NET_CLS_BPF (`modprobe cls_bpf`)", err))
		}
		if err := o.checkTaps(); err != nil { // not before the filter is there
			problems = append(problems, fmt.Sprintf("guests receive nothing, and their taps could not be restored: %.300v", err))
		}
	}
	if err := o.checkDevice(ctx); err != nil {
		problems = append(problems, fmt.Sprintf("WireGuard lacks this host's address or is down, and could not be restored: %v", err))
	}
	if err := o.checkRoutes(); err != nil {
		problems = append(problems, fmt.Sprintf("routes to guests are lost, and could not be set again: %.300v", err))
	}
	for _, c := range chains {
		if p := o.checkForward(ctx, c); p != "" {
			problems = append(problems, p)
		}
	}
	if p := o.checkPeers(time.Now()); p != "" {
		problems = append(problems, p)
	}
	return problems
}

// checkRoutes sets routes and forwarding again that were lost. The kernel deletes the routes over a link that goes down, or that loses its
// address, without telling anybody.
func (o *Overlay) checkRoutes() error {
	if o.routes == nil {
		return nil
	}
	interfaces := []string{o.lan.name, Device}
	for uid := range o.guests {
		interfaces = append(interfaces, TapName(uid))
	}
	for _, name := range interfaces {
		if now, err := os.ReadFile(sysctlPath("ipv4/conf/%s/forwarding", name)); err == nil && strings.TrimSpace(string(now)) != "1" {
			o.log.Warn("forwarding was turned off: turning it on again", "interface", name)
			if err := setInterfaceSysctls(name, lanSysctls); err != nil {
				return err
			}
		}
	}
	actual, err := o.actualRoutes(newLinkCache(o.handle, o.lan))
	if err != nil {
		return err
	}
	set, remove := diffRoutes(o.routes, actual)
	if len(set)+len(remove) == 0 {
		return nil
	}
	if err := o.applyRoutes(o.routes); err != nil {
		return err // as long as the link is down
	}
	o.log.Warn("routes to guests were changed, and were set again", "lost", len(set), "added", len(remove))
	return nil
}

func listChains() ([]*nftables.Chain, error) {
	connection, err := nftables.New()
	if err != nil {
		return nil, err
	}
	return connection.ListChains()
}

func isOwn(t *nftables.Table) bool {
	return t != nil && t.Name == "watari" && t.Family == nftables.TableFamilyINet
}

// checkForward checks whether a chain of another program drops all packets it does not know, as Docker's does. Into an
// iptables chain it inserts rules that accept the overlay's interfaces. The overlay's own filter still decides about
// those packets.
func (o *Overlay) checkForward(ctx context.Context, c *nftables.Chain) string {
	drops := c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
	family := c.Table.Family
	concerns := family == nftables.TableFamilyIPv4 || family == nftables.TableFamilyINet
	if !drops || !concerns || isOwn(c.Table) {
		return ""
	}
	if family == nftables.TableFamilyIPv4 && c.Table.Name == "filter" && c.Name == "FORWARD" {
		err := o.acceptInIptables(ctx)
		if err == nil {
			return ""
		}
		return fmt.Sprintf("iptables drops forwarded packets (policy of FORWARD) and could not be told to accept those of guests: %v", err)
	}
	return fmt.Sprintf("nftables chain %s of table %s drops forwarded packets by default: let it accept interfaces wt* and %s, and %s for guests' addresses",
		c.Name, c.Table.Name, Device, o.lan.name)
}

// iptablesRules returns rules for another program's FORWARD chain. They accept the packets that the overlay's own
// filter has accepted.
func iptablesRules() [][]string {
	var rules [][]string
	for _, match := range [][]string{{"-i", "wt+"}, {"-o", "wt+"}, {"-i", Device}, {"-o", Device}} {
		rules = append(rules, append(match, "-m", "comment", "--comment", "watari", "-j", "ACCEPT"))
	}
	return rules
}

// acceptInterval is how often the iptables rules are checked. Each rule takes a process.
const acceptInterval = 15 * time.Second

func (o *Overlay) acceptInIptables(ctx context.Context) error {
	if time.Since(o.accepted) < acceptInterval {
		return nil
	}
	for _, rule := range iptablesRules() {
		if iptables(ctx, "-C", rule) == nil {
			continue
		}
		if err := iptables(ctx, "-I", rule); err != nil {
			return err
		}
	}
	o.accepted = time.Now()
	return nil
}

func iptables(ctx context.Context, verb string, rule []string) error {
	args := append([]string{"--wait", "5", verb, "FORWARD"}, rule...)
	out, err := exec.CommandContext(ctx, program("iptables"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("iptables %s: %s: %w", strings.Join(args, " "), strings.TrimSpace(string(out)), err)
	}
	return nil
}

// checkInterval is the time between Watch's checks.
const checkInterval = 5 * time.Second

// Watch monitors the network until ctx ends. It calls changed when the WireGuard device has disappeared, so that the
// caller runs Apply again. It calls Check every few seconds, and when the packet filter changes; Problems returns the result.
func (o *Overlay) Watch(ctx context.Context, changed func()) error {
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	go o.watchPaths(ctx)
	go o.watchFilter(ctx)
	return o.watch(ctx, linkUpdates, check.C, func() { o.Check(ctx) }, changed)
}

func (o *Overlay) watch(ctx context.Context, subscribe func(context.Context) (<-chan netlink.LinkUpdate, error),
	tick <-chan time.Time, check, changed func()) error {
	updates, err := subscribe(ctx)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick:
			if updates == nil {
				if updates, err = subscribe(ctx); err != nil {
					o.log.Error("the WireGuard device is not watched", "error", err)
				} else {
					changed() // updates may have been lost meanwhile
				}
			}
			check()
		case update, ok := <-updates:
			if !ok { // the socket's buffer has overflowed
				updates = nil
				continue
			}
			if update.Header.Type == unix.RTM_DELLINK && update.Attrs().Name == Device {
				o.log.Warn("the WireGuard device disappeared", "device", Device)
				changed()
			}
		}
	}
}

// watchFilter calls Check as soon as the kernel says that a program has changed Watari's packet filter. Otherwise a change would stay
// until the next regular Check.
func (o *Overlay) watchFilter(ctx context.Context) {
	for ctx.Err() == nil {
		if err := o.followFilter(ctx); err != nil && ctx.Err() == nil {
			o.log.Warn("changes of the packet filter are not followed; it is checked every few seconds", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkInterval):
		}
	}
}

func (o *Overlay) followFilter(ctx context.Context) error {
	conn, err := nl.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return err
	}
	for {
		messages, err := conn.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // messages were lost
		case err != nil:
			return err
		case !slices.ContainsFunc(messages, ofOwnFilter):
			continue
		}
		o.Check(ctx)
		time.Sleep(filterPause)
	}
}

// filterPause is the pause between two checks if the filter changes all the time. Apply changes it, too.
const filterPause = 20 * time.Millisecond

// ofOwnFilter reports whether a message of the kernel is about a part of the own table. Each part names its table in attribute 1, after
// the header of four bytes.
func ofOwnFilter(m nl.Message) bool {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < 4 || m.Data[0] != unix.NFPROTO_INET {
		return false
	}
	attributes, err := nl.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return false
	}
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_TABLE_NAME {
			return attributes.String() == "watari"
		}
	}
	return false
}

func linkUpdates(ctx context.Context) (<-chan netlink.LinkUpdate, error) {
	updates := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribe(updates, ctx.Done()); err != nil {
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	return updates, nil
}

// Problems returns the problems that the last Check found, one sentence each.
func (o *Overlay) Problems() []string {
	if found := o.problems.Load(); found != nil {
		return slices.Clone(*found)
	}
	return nil
}

// Cleanup removes everything that the overlay made on this host: taps, routes, the WireGuard device with its process,
// the packet filter and the iptables rules. It restores forwarding. It keeps the WireGuard key.
func (o *Overlay) Cleanup(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	guests, err := pluggedGuests(o.handle)
	errs = append(errs, err)
	for uid := range guests {
		errs = append(errs, deleteLink(o.handle, TapName(uid)))
	}
	o.routes = nil
	errs = append(errs, o.applyRoutes(nil))
	// The WireGuard process exits when its device is deleted.
	errs = append(errs, deleteLink(o.handle, Device))
	errs = append(errs, nft(ctx, "add table inet watari\ndelete table inet watari\n"))
	for _, rule := range iptablesRules() {
		for iptables(ctx, "-C", rule) == nil {
			if err := iptables(ctx, "-D", rule); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	errs = append(errs, o.restoreForwarding())
	if err := os.Remove(o.relayFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	clear(o.guests)
	clear(o.clusters)
	clear(o.wanted)
	o.peers = nil
	o.prepared, o.accepted = false, time.Time{}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the overlay from this host: %w", err)
	}
	return nil
}
