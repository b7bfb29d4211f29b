package core

// recover.go - plans a recovery: makes the objects agree with what hosts run, after an older copy of the state was
// restored.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
	"watari/internal/protocol"
	"watari/migration"
)

// EpochGap is the distance, after a recovery, between a guest's highest known epoch and its next one. Epochs that hosts
// got in the lost time and did not report lie in this gap. To use an epoch twice, a guest would have to be started or
// moved that often in the lost time.
const EpochGap = 1000

const (
	// maxEpoch is above every epoch that a guest can have.
	maxEpoch = math.MaxUint64 / 4
	// lostEpochs bounds how many epochs a guest was given in the lost time. A recovery does not believe a host that
	// reports a higher one: the guest's next epochs would lie above that, until none is left.
	lostEpochs = 1 << 32
)

// RecoveryChoices are the inputs of a recovery besides the objects and the reports.
type RecoveryChoices struct {
	Keep    map[string]string // guest's name or uid: the host whose copy goes on. A person chose it.
	Without []string          // hosts that are not connected, and whose guests are gone. A person vouches for it.
	Unknown []string          // hosts that have tried to connect, with certificates of hosts that the state does not know
}

// RecoveredGuest is a recovery's decision about one guest.
type RecoveredGuest struct {
	*v1.GuestRecovery
	// Object is the guest to store; nil: none. Its meta.revision is 0 if it is new.
	Object *v1.Guest
}

// RecoveredCluster is a cluster that is made again, without the certificate and key of its authority, or a known cluster
// that gets guests.
type RecoveredCluster struct {
	*v1.ClusterRecovery
	Object *v1.Cluster
}

// Known reports whether the state has the cluster, which has grown since.
func (c RecoveredCluster) Known() bool { return c.Object.Meta.GetRevision() != 0 }

func (c RecoveredCluster) why() string {
	if c.Known() {
		return "its cluster has grown since"
	}
	return "its cluster is made again"
}

// RecoveryPlan is the work of a recovery. It is carried out only if there are no Obstacles.
type RecoveryPlan struct {
	Guests      []RecoveredGuest // by name
	Clusters    []RecoveredCluster
	Hosts       []*v1.HostRecovery // that may run guests which no report shows
	Migrations  []*v1.Migration    // as they are to be stored: ended
	Checkpoints []*v1.Checkpoint   // as they are to be stored: ended
	Obstacles   []string
}

// reportedName matches names and uids of guests. Recovery ignores others in hosts' reports, because they would appear
// in messages.
var reportedName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// guestCopy is a guest on a host, as the host reports it.
type guestCopy struct {
	host string
	seen *v1.GuestObserved
}

// recovery is the work on one plan.
type recovery struct {
	objects *Objects
	reports map[string]*v1.HostObserved
	choices RecoveryChoices
	plan    RecoveryPlan

	absent   []string               // hosts that may run any guest: not vouched for, and no report shows all that they run
	copies   map[string][]guestCopy // by guest uid
	doubtful map[string][]string    // hosts whose report of a guest is not believed, by guest uid
	stored   map[string]uint64      // the highest epoch that the state knows, by guest uid
	epochs   map[string]uint64      // the highest that a host reports, by guest uid
	made     map[string]string      // why an unknown cluster is not made again, by its uid; empty: it is
}

// Recovery plans a recovery. reports are those of the connected hosts. A guest that a disconnected host may run is
// neither started nor given up.
func Recovery(objects *Objects, reports map[string]*v1.HostObserved, choices RecoveryChoices) RecoveryPlan {
	r := &recovery{objects: objects, reports: reports, choices: choices, copies: map[string][]guestCopy{}, doubtful: map[string][]string{},
		stored: map[string]uint64{}, epochs: map[string]uint64{}, made: map[string]string{}}
	for _, g := range objects.Guests {
		r.stored[g.Meta.GetUid()] = max(g.LastEpoch, g.Epoch)
	}
	r.hosts()
	r.collect()
	r.clusters()
	byUID := map[string]*v1.Guest{}
	for _, name := range slices.Sorted(maps.Keys(objects.Guests)) {
		g := objects.Guests[name]
		byUID[g.Meta.GetUid()] = g
		r.guest(g)
	}
	for _, uid := range slices.Sorted(maps.Keys(r.copies)) {
		if byUID[uid] == nil {
			r.unknown(uid, r.copies[uid])
		}
	}
	r.missing(byUID)
	r.migrations()
	r.checkpoints()
	r.restores()
	r.checkKeep()
	slices.SortFunc(r.plan.Guests, func(a, b RecoveredGuest) int {
		return cmp.Or(cmp.Compare(a.Guest, b.Guest), cmp.Compare(a.Uid, b.Uid), cmp.Compare(a.Host, b.Host))
	})
	slices.Sort(r.plan.Obstacles)
	r.plan.Obstacles = slices.Compact(r.plan.Obstacles)
	return r.plan
}

func (r *recovery) obstacle(format string, a ...any) {
	r.plan.Obstacles = append(r.plan.Obstacles, fmt.Sprintf(format, a...))
}

// hosts finds the hosts that may run guests which no report shows.
func (r *recovery) hosts() {
	for _, name := range r.choices.Without {
		switch {
		case r.reports[name] != nil:
			r.obstacle("host %s is connected, so it is not gone; leave out --without %s", name, name)
		case r.objects.Hosts[name] == nil && !slices.Contains(r.choices.Unknown, name):
			r.obstacle("there is no host %s to go on without", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.objects.Hosts)) {
		switch report := r.reports[name]; {
		case r.objects.Hosts[name].Meta.GetDeleting() != nil: // it ends its guests
		case report == nil:
			r.addAbsent(name, "it is not connected; guests that it alone runs are missed, and are taken up by another recovery when it is back")
		case report.GetProcessesUnknown():
			// A later recovery would not take up the guests that are missed here: a connected host's stamp counts as
			// answered.
			r.obstacle("host %s could not look at its processes; try again; if that stays so, end its agent, and it counts as not connected", name)
			r.addAbsent(name, "it could not look at its processes, so that it may run guests which it does not report; try again")
		}
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(r.choices.Unknown))) {
		r.addAbsent(name, "it tried to connect with a certificate that this state does not know: it joined after the copy was made; join it again with a "+
			"token first (delete pki/, and nothing else, in its agent's state folder); guests that it alone runs are missed otherwise")
	}
}

// addAbsent adds a host that may run any guest, unless a person vouches that it runs none.
func (r *recovery) addAbsent(name, why string) {
	h := &v1.HostRecovery{Host: name, Reason: why, Vouched: slices.Contains(r.choices.Without, name) && r.reports[name] == nil}
	if h.Vouched {
		h.Reason = "it is not connected; you vouch that its guests are gone"
	}
	if i := slices.IndexFunc(r.plan.Hosts, func(other *v1.HostRecovery) bool { return other.Host == name }); i >= 0 {
		if !h.Vouched {
			r.plan.Hosts[i].Reason += "; another host of its name: " + why
		}
		return
	}
	if !h.Vouched && !slices.Contains(r.absent, name) {
		r.absent = append(r.absent, name)
	}
	r.plan.Hosts = append(r.plan.Hosts, h)
}

// collect gathers the hosts' reports of each guest. It trusts no host's values. A report that it does not believe does not
// prove that the guest is absent.
func (r *recovery) collect() {
	for _, host := range slices.Sorted(maps.Keys(r.reports)) {
		report, mine := r.reports[host], map[string]bool{}
		for _, e := range report.GetEpochs() {
			r.noteEpoch(e.GetUid(), e.GetEpoch())
		}
		for _, seen := range report.GetGuests() {
			uid := seen.GetUid()
			// An agent that has not read the guest's record yet reports a process without name and epoch.
			named := seen.GetName() == "" || reportedName.MatchString(seen.GetName())
			if !reportedName.MatchString(uid) || !named || mine[uid] || !r.believable(uid, seen.GetEpoch()) {
				r.doubt(host, seen)
				continue
			}
			mine[uid] = true
			r.noteEpoch(uid, seen.Epoch)
			r.copies[uid] = append(r.copies[uid], guestCopy{host, seen})
		}
	}
}

// doubt adds a host's report of a guest that is not believed. If the state knows the guest, a person has to look at the
// host.
func (r *recovery) doubt(host string, seen *v1.GuestObserved) {
	r.add(&v1.GuestRecovery{Guest: strconv.Quote(seen.GetName()), Uid: strconv.Quote(seen.GetUid()), Host: host, Epoch: seen.GetEpoch(),
		Act: v1.RecoveryAct_RECOVERY_ACT_LEAVE, Reason: "the host's report of it is not one that an agent makes; it is left out of account"}, nil)
	r.doubtful[seen.GetUid()] = append(r.doubtful[seen.GetUid()], host)
	for name, g := range r.objects.Guests {
		if g.Meta.GetUid() == seen.GetUid() {
			r.obstacle("guest %s on %s: %s", name, host, doubted(host))
		}
	}
}

func doubted(host string) string {
	return fmt.Sprintf("the host's report of it is not one that an agent makes; look at that host, or end its agent and say --without %s if its guests are gone", host)
}

// believable tells whether a guest can have an epoch.
func (r *recovery) believable(uid string, epoch uint64) bool {
	return epoch < maxEpoch && epoch <= r.stored[uid]+lostEpochs
}

func (r *recovery) noteEpoch(uid string, epoch uint64) {
	if r.believable(uid, epoch) {
		r.epochs[uid] = max(r.epochs[uid], epoch)
	}
}

// lastEpoch returns an epoch above all known epochs of the guest.
func (r *recovery) lastEpoch(g *v1.Guest) uint64 {
	known := max(g.LastEpoch, g.Epoch, r.epochs[g.Meta.GetUid()])
	return max(known, min(known+EpochGap, maxEpoch-1))
}

func (r *recovery) add(g *v1.GuestRecovery, object *v1.Guest) {
	if g.Act == v1.RecoveryAct_RECOVERY_ACT_WAIT {
		object = nil
	}
	r.plan.Guests = append(r.plan.Guests, RecoveredGuest{g, object})
}

// guest decides about a guest in the state.
func (r *recovery) guest(stored *v1.Guest) {
	g := proto.CloneOf(stored)
	g.LastEpoch = r.lastEpoch(stored)
	row := &v1.GuestRecovery{Guest: g.Meta.Name, Uid: g.Meta.Uid, Cluster: g.Cluster, Host: g.Host, Epoch: g.Epoch}
	at, settled := r.choose(row, r.copies[g.Meta.Uid])
	switch {
	case settled:
		r.add(row, nil)
	case at == nil:
		r.nowhere(row, g)
	case at.seen.Epoch < g.Epoch && at.host != g.Host && row.Reason == "":
		r.end(row, *at, fmt.Sprintf("the state knows epoch %d of it", g.Epoch))
		r.nowhere(row, g)
	case at.host == g.Host && at.seen.Epoch <= g.Epoch:
		row.Act = v1.RecoveryAct_RECOVERY_ACT_KEEP
		r.add(row, g)
	default:
		row.Act, row.Host, row.Epoch = v1.RecoveryAct_RECOVERY_ACT_ADOPT, at.host, at.seen.Epoch
		row.Reason = cmp.Or(row.Reason, "it runs there, and the state knew an earlier epoch")
		r.adopt(g, at)
		r.add(row, g)
	}
}

// adopt gives a guest's grant to the host of its copy.
func (r *recovery) adopt(g *v1.Guest, at *guestCopy) {
	g.Host, g.Epoch, g.BootId = at.host, at.seen.Epoch, r.reports[at.host].GetInfo().GetBootId()
	g.Stopped, g.Failure, g.Message = false, "", ""
	started := g.Epoch
	if f := at.seen.Facts; f.GetStartedEpoch() > 0 && f.GetStartedEpoch() <= g.Epoch {
		started, g.Platform = f.StartedEpoch, f.Platform
	}
	if g.StartedEpoch != started {
		g.StartedEpoch, g.Started = started, nil
	}
}

// choose finds the copy that continues; nil: there is none. settled: the row says what prevents a choice.
func (r *recovery) choose(row *v1.GuestRecovery, copies []guestCopy) (at *guestCopy, settled bool) {
	var live, received []guestCopy
	for _, c := range copies {
		switch why := unsettled(c.seen); {
		case why != "":
			r.wait(row, c, why)
			return nil, true
		case c.seen.Epoch == 0 && mayRun(c.seen):
			r.end(row, c, "the host has no record of it")
		case mayRun(c.seen):
			live = append(live, c)
		case c.seen.Condition == v1.GuestCondition_GUEST_CONDITION_RECEIVED:
			received = append(received, c)
		}
	}
	switch {
	case len(live) > 1:
		return r.conflict(row, live)
	case len(live) == 1:
		return &live[0], false
	case len(received) > 1:
		return r.conflict(row, received)
	case len(received) == 1:
		return r.received(row, received[0], copies)
	}
	return nil, r.arriving(row, copies)
}

// wait makes the recovery wait for the operation that is under way on a copy.
func (r *recovery) wait(row *v1.GuestRecovery, c guestCopy, why string) {
	row.Act, row.Host, row.Epoch, row.Reason = v1.RecoveryAct_RECOVERY_ACT_WAIT, c.host, c.seen.GetEpoch(), why
	r.obstacle("guest %s on %s: %s; try again when that has ended", cmp.Or(row.Guest, row.Uid), c.host, why)
}

// end adds a copy that the orders after the recovery end.
func (r *recovery) end(row *v1.GuestRecovery, c guestCopy, why string) {
	r.add(&v1.GuestRecovery{Guest: row.Guest, Uid: row.Uid, Cluster: row.Cluster, Host: c.host, Epoch: c.seen.Epoch,
		Act: v1.RecoveryAct_RECOVERY_ACT_END, Reason: why}, nil)
}

// arriving decides about a copy that a move is bringing to a host, if no other copy may go on. Once the source has sent it,
// it is the only copy, even if its host does not report yet that the copy is complete. It returns true if the row says that
// the recovery waits for the move.
func (r *recovery) arriving(row *v1.GuestRecovery, copies []guestCopy) bool {
	sent := slices.ContainsFunc(copies, func(c guestCopy) bool { return c.seen.Condition == v1.GuestCondition_GUEST_CONDITION_SENT })
	for _, c := range copies {
		receiving := c.seen.Condition == v1.GuestCondition_GUEST_CONDITION_RECEIVING && (sent || c.seen.Process)
		reserved := c.seen.Condition == v1.GuestCondition_GUEST_CONDITION_RESERVED && c.seen.Process
		switch {
		case receiving || reserved && sent:
			r.wait(row, c, "a move is bringing it there")
			return true
		case reserved:
			r.end(row, c, "room was made for a move, and nothing was sent")
		}
	}
	return false
}

// received decides about a paused copy that a move has brought, if the move's source has no copy.
func (r *recovery) received(row *v1.GuestRecovery, c guestCopy, copies []guestCopy) (at *guestCopy, settled bool) {
	for _, other := range copies {
		if other.seen.Condition == v1.GuestCondition_GUEST_CONDITION_SENT && other.seen.Epoch < c.seen.Epoch {
			row.Reason = fmt.Sprintf("host %s had sent it there", other.host)
			return &c, false
		}
	}
	for _, other := range copies {
		notes := r.reports[other.host].GetProtocol() >= protocol.Changes // earlier versions do not say whether it ran on
		if o := other.seen; notes && o.Condition == v1.GuestCondition_GUEST_CONDITION_GONE && !o.Process && !o.RanOn && o.Epoch < c.seen.Epoch &&
			o.MigrationId != "" && o.MigrationId == c.seen.MigrationId {
			row.Reason = fmt.Sprintf("its copy on host %s ended during the move that brought it there", other.host)
			return &c, false
		}
	}
	if len(r.absent) == 0 {
		if c.seen.Process {
			r.end(row, c, "no host has sent it there, so it may be older than what ran last")
		}
		return nil, false
	}
	row.Act, row.Host, row.Epoch = v1.RecoveryAct_RECOVERY_ACT_WAIT, c.host, c.seen.Epoch
	row.Reason = "a move has brought it there, and the host that sent it is not connected"
	r.obstacle("guest %s on %s: %s; connect it, or say --without HOST if its guests are gone: %s", row.Guest, c.host, row.Reason, strings.Join(r.absent, ", "))
	return nil, true
}

// conflict asks a person which of several copies continues. The others are ended, because their epochs are below the
// guest's last.
func (r *recovery) conflict(row *v1.GuestRecovery, live []guestCopy) (at *guestCopy, settled bool) {
	keep := cmp.Or(r.choices.Keep[row.Guest], r.choices.Keep[row.Uid])
	var hosts []string
	for i, c := range live {
		hosts = append(hosts, c.host)
		if c.host == keep {
			at = &live[i]
		}
	}
	if at == nil {
		row.Act, row.Host, row.Epoch = v1.RecoveryAct_RECOVERY_ACT_CONFLICT, strings.Join(hosts, ", "), live[0].seen.Epoch
		row.Reason = "several hosts run copies of it"
		r.obstacle("guest %s runs on %s; say whose copy goes on, the others are ended: --keep %s=HOST", row.Guest, strings.Join(hosts, " and "), row.Guest)
		return nil, true
	}
	row.Reason = "you chose this copy"
	for _, c := range live {
		if c.host != keep {
			r.end(row, c, "you chose the copy on "+keep)
		}
	}
	return at, false
}

// nowhere decides about a guest in the state that no connected host runs.
func (r *recovery) nowhere(row *v1.GuestRecovery, g *v1.Guest) {
	away := r.objects.Hosts[g.Host] != nil && slices.Contains(r.absent, g.Host)
	deleting := leaves(r.objects.Clusters[g.Cluster], g)
	idle := g.Stopped || g.Host == "" && g.Failure != ""
	switch {
	case away:
		row.Act, row.Reason = v1.RecoveryAct_RECOVERY_ACT_KEEP, "its host is not connected; it may still be running"
	case deleting || idle && len(r.absent) == 0:
		row.Act, g.Host, g.BootId = v1.RecoveryAct_RECOVERY_ACT_KEEP, "", ""
		row.Host = ""
	case len(r.absent) > 0:
		r.holdBack(row, g)
	default:
		r.restart(row, g, "no host runs it")
	}
	r.add(row, g)
}

// The failure of a guest that is held back begins with heldBackFailure. After failedBefore, it repeats an earlier failure.
const (
	heldBackFailure = "after a recovery it is not known where it runs"
	failedBefore    = "; before: "
)

// holdBack prevents a guest from being started while a disconnected host may run it. A guest that was stopped or had
// failed is held back, too: it may have been started in the lost time.
func (r *recovery) holdBack(row *v1.GuestRecovery, g *v1.Guest) {
	hosts, before := strings.Join(r.absent, ", "), ""
	switch {
	case strings.HasPrefix(g.Failure, heldBackFailure):
		if at := strings.Index(g.Failure, failedBefore); at >= 0 {
			before = g.Failure[at:]
		}
	case g.Failure != "" && g.Host == "":
		before = failedBefore + g.Failure
	}
	if g.Stopped && before == "" {
		before = "; it was stopped when the copy of the state was made"
	}
	row.Act, row.Host = v1.RecoveryAct_RECOVERY_ACT_HOLD, ""
	row.Reason = "no connected host runs it, and it may still run on: " + hosts
	g.Host, g.BootId, g.Platform = "", "", nil
	g.Failure = fmt.Sprintf("%s; it may still run on %s; ask the administrators of these hosts, have them connect the hosts, and recover again; only if it does not run there: "+
		"watari guest start %s%s", heldBackFailure, hosts, g.Meta.Name, before)
}

// restart lets a guest be started again, if its image exists. It waits for copies that may run. It need not wait for copies
// that the plan ends: the manager gives no grant while a host reports a process of the guest.
func (r *recovery) restart(row *v1.GuestRecovery, g *v1.Guest, why string) {
	var ending []string
	for _, other := range r.plan.Guests {
		if other.Uid == row.Uid && other.Act == v1.RecoveryAct_RECOVERY_ACT_END {
			ending = append(ending, other.Host)
		}
	}
	for _, c := range r.copies[row.Uid] {
		if c.seen.Process && !slices.Contains(ending, c.host) {
			r.wait(row, c, "a process of it is there")
			return
		}
	}
	row.Act, row.Host, row.Reason = v1.RecoveryAct_RECOVERY_ACT_RESTART, "", why
	if len(ending) > 0 {
		row.Reason = "it waits for the end of its copy on " + strings.Join(ending, ", ")
	}
	g.Host, g.BootId, g.Platform = "", "", nil
	if !r.imageKnown(g.ImageDigest) {
		row.Reason += "; its image is not known and must be built again first"
		g.Failure = fmt.Sprintf("its image %s is not known; build the image again, then: watari guest start %s", g.ImageDigest, g.Meta.Name)
	}
}

func (r *recovery) imageKnown(digest string) bool {
	for _, image := range r.objects.Images {
		if image.Digest == digest {
			return true
		}
	}
	return false
}

// migrations ends the moves that are under way in the state. The recovery itself decides where their guests are.
func (r *recovery) migrations() {
	for _, name := range slices.Sorted(maps.Keys(r.objects.Migrations)) {
		m := r.objects.Migrations[name]
		if migration.Ended(m.State) {
			continue
		}
		m = proto.CloneOf(m)
		m.State, m.Message = v1.MigrationState_MIGRATION_STATE_CANCELLED, "the manager's state was put back from an older copy"
		r.plan.Migrations = append(r.plan.Migrations, m)
	}
}

// checkpoints ends the checkpoints that are under way in the state. Hosts may have gone on with them, each in its own way.
func (r *recovery) checkpoints() {
	for _, name := range slices.Sorted(maps.Keys(r.objects.Checkpoints)) {
		c := r.objects.Checkpoints[name]
		if checkpoint.Ended(c.State) {
			continue
		}
		c = proto.CloneOf(c)
		c.State, c.Message = v1.CheckpointState_CHECKPOINT_STATE_CANCELLED, "the manager's state was put back from an older copy"
		r.plan.Checkpoints = append(r.plan.Checkpoints, c)
	}
}

// restores ends restores that would first end all guests of a cluster, if guests of the cluster run: they went on after the
// state was written. A cluster of which nothing runs, such as a suspended one, is restored as the state says.
func (r *recovery) restores() {
	for _, name := range slices.Sorted(maps.Keys(r.objects.Clusters)) {
		c := r.objects.Clusters[name]
		if c.GetRestore().GetState() != v1.RestoreState_RESTORE_STATE_ENDING || !r.runs(c) {
			continue
		}
		made := r.planned(c.Meta.GetUid())
		if made == nil {
			row := &v1.ClusterRecovery{Cluster: name, Uid: c.Meta.GetUid(), Owner: c.Meta.Owner, Guests: c.Spec.GetGuests()}
			r.plan.Clusters = append(r.plan.Clusters, RecoveredCluster{row, proto.CloneOf(c)})
			made = &r.plan.Clusters[len(r.plan.Clusters)-1]
		}
		made.Object.Restore.State, made.Object.Restore.Message = v1.RestoreState_RESTORE_STATE_FAILED, "the manager's state was put back from an older copy"
		made.Notes = append(made.Notes, "it was being restored when the copy of the state was made, and has run since")
	}
}

// runs reports whether a copy of a guest of a known cluster has run. A copy that is being started does not count: it may be
// waiting for the files of this very restore.
func (r *recovery) runs(c *v1.Cluster) bool {
	for _, g := range r.objects.Guests {
		if g.Cluster == c.Meta.Name && slices.ContainsFunc(r.copies[g.Meta.GetUid()], func(copy guestCopy) bool {
			return mayRun(copy.seen) && copy.seen.Condition != v1.GuestCondition_GUEST_CONDITION_STARTING
		}) {
			return true
		}
	}
	return false
}

// checkKeep refuses choices about unknown guests or hosts, because they may be misspelt.
func (r *recovery) checkKeep() {
	for _, guest := range slices.Sorted(maps.Keys(r.choices.Keep)) {
		host := r.choices.Keep[guest]
		if !slices.ContainsFunc(r.plan.Guests, func(g RecoveredGuest) bool {
			return (g.Guest == guest || g.Uid == guest) && g.Host == host && g.Act != v1.RecoveryAct_RECOVERY_ACT_END
		}) {
			r.obstacle("--keep %s=%s: host %s runs no copy of guest %s that can be kept", guest, host, host, guest)
		}
	}
}

// mayRun reports whether a copy runs, or may begin to run by itself.
func mayRun(g *v1.GuestObserved) bool {
	switch g.GetCondition() {
	case v1.GuestCondition_GUEST_CONDITION_STARTING:
		return g.MigrationId == "" // a host that reserves resources for an incoming guest also reports this condition
	case v1.GuestCondition_GUEST_CONDITION_RUNNING, v1.GuestCondition_GUEST_CONDITION_PAUSED,
		v1.GuestCondition_GUEST_CONDITION_SENDING, v1.GuestCondition_GUEST_CONDITION_SEND_FAILED:
		return true
	}
	return false
}

// unsettled names the operation under way on a copy, which will end by itself; empty: none.
func unsettled(g *v1.GuestObserved) string {
	switch g.GetCondition() {
	case v1.GuestCondition_GUEST_CONDITION_SENDING:
		return "it is being sent to another host"
	case v1.GuestCondition_GUEST_CONDITION_UNSPECIFIED:
		if g.GetEpoch() == 0 && !g.GetProcess() {
			return "its host cannot read its record"
		}
		if g.GetName() == "" {
			return "its host has a process of it, and has not read its record"
		}
		return "its host cannot tell what became of it"
	case v1.GuestCondition_GUEST_CONDITION_STARTING:
		if g.GetMigrationId() != "" && g.GetProcess() {
			return "it is being received or resumed"
		}
	case v1.GuestCondition_GUEST_CONDITION_GONE, v1.GuestCondition_GUEST_CONDITION_FAILED, v1.GuestCondition_GUEST_CONDITION_SENT:
		if g.GetProcess() {
			return "its host reports its end while a process of it is there"
		}
	}
	return ""
}
