package core

// index.go - indexes objects and reports, and marks what has changed since the last decision.

import (
	"slices"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
	"watari/migration"
)

// index updates itself from the differences between two worlds. An unchanged object has the same pointer in both.
type index struct {
	objects *Objects
	reports map[string]Seen

	onHost    map[string]set[*v1.Guest] // by the host that holds the grant
	ofCluster map[string]set[*v1.Guest]
	byUID     map[string]*v1.Guest
	unplaced  map[string]bool // names of guests without a grant
	moves     Moves
	unended   map[string]bool               // moves and checkpoints that have not ended, by uid
	ended     map[string][]*v1.Migration    // by guest uid, in no order
	movesAt   map[string]set[*v1.Migration] // active ones, by source and by target
	reporting map[string]map[string]bool    // hosts that report a guest, by its uid
	strangers map[string]Stranger

	// Marks of what must be decided again.
	everything    bool
	guests        map[string]bool // names
	hosts         map[string]bool // names: their orders, and what their agents say of them
	left          map[string]bool // names of hosts whose orders are made, but what their agents say may not be stored
	shareAgain    bool
	moved         bool                   // a move was stored or changed
	hostChanged   bool                   // a host was stored or changed, since policies looked at the hosts
	ordered       map[string][]*v1.Guest // ofCluster by index, made on demand
	networks      map[string]*clusterNetwork
	former        map[string]*clusterNetwork // networks that have to be made again
	peers         map[string]peerHosts
	facts         map[*v1.Guest]knownFacts
	imageDigest   map[string]*v1.Image
	checkpointsOf map[string]set[*v1.Checkpoint] // by checkpointsKey of the cluster or volume
	checkpointsAt map[string]set[*v1.Checkpoint] // by the hosts of their guests and files
	uncopied      set[*v1.Checkpoint]            // those whose files are on too few hosts
	filesAt       map[string]map[string]bool     // hosts that report something of a checkpoint, by its uid
	volumesAt     map[string]set[*v1.Volume]     // by host, and by the target of a move
	unmade        set[*v1.Volume]                // no host has had their disks. The order to make one depends on what all hosts report
}

type set[T comparable] map[T]bool

func newIndex() *index {
	return &index{objects: NoObjects(), reports: map[string]Seen{}, onHost: map[string]set[*v1.Guest]{}, ofCluster: map[string]set[*v1.Guest]{},
		byUID: map[string]*v1.Guest{}, unplaced: map[string]bool{}, moves: Moves{}, unended: map[string]bool{}, movesAt: map[string]set[*v1.Migration]{}, ended: map[string][]*v1.Migration{},
		reporting: map[string]map[string]bool{}, strangers: map[string]Stranger{}, everything: true, hostChanged: true, guests: map[string]bool{},
		hosts: map[string]bool{}, left: map[string]bool{}, shareAgain: true, ordered: map[string][]*v1.Guest{}, networks: map[string]*clusterNetwork{}, former: map[string]*clusterNetwork{}, peers: map[string]peerHosts{}, facts: map[*v1.Guest]knownFacts{},
		checkpointsOf: map[string]set[*v1.Checkpoint]{}, checkpointsAt: map[string]set[*v1.Checkpoint]{}, uncopied: set[*v1.Checkpoint]{}, filesAt: map[string]map[string]bool{}, volumesAt: map[string]set[*v1.Volume]{}, unmade: set[*v1.Volume]{}}
}

func add[T comparable](m map[string]set[T], key string, v T) {
	if key == "" {
		return
	}
	if m[key] == nil {
		m[key] = set[T]{}
	}
	m[key][v] = true
}

func remove[T comparable](m map[string]set[T], key string, v T) {
	delete(m[key], v)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// differences calls change for each name whose object has changed; nil: there was, or is, no object.
func differences[T comparable](before, now map[string]T, change func(name string, before, now T)) {
	var none T
	for name, old := range before {
		if o, is := now[name]; !is {
			change(name, old, none)
		} else if o != old {
			change(name, old, o)
		}
	}
	for name, o := range now {
		if _, was := before[name]; !was {
			change(name, none, o)
		}
	}
}

// see updates the index from a world, and marks what must be decided again.
func (x *index) see(w *World) {
	before := x.objects
	x.objects = w.Objects
	differences(before.Guests, w.Guests, x.seeGuest)
	differences(before.Migrations, w.Migrations, x.seeMove)
	differences(before.Clusters, w.Clusters, func(name string, _, _ *v1.Cluster) { x.markCluster(name) })
	differences(before.Checkpoints, w.Checkpoints, x.seeCheckpoint)
	differences(before.Volumes, w.Volumes, x.seeVolume)
	if !sameMap(before.Storages, w.Storages) {
		x.markMounts()
	}
	if !sameMap(before.Sites, w.Sites) {
		x.everything = true
		for name := range w.Hosts {
			x.markPeers(name)
		}
	}
	differences(before.Hosts, w.Hosts, x.seeHost)
	if !sameMap(before.Revocations, w.Revocations) {
		x.everything = true // all guests get new certificates
	}
	if !sameMap(before.Images, w.Images) {
		x.imageDigest, x.everything = nil, true
	}
	reports := x.reports
	x.reports = w.Reports
	differences(reports, w.Reports, x.seeReport)
}

func sameMap[T comparable](a, b map[string]T) bool {
	same := len(a) == len(b)
	for name, o := range b {
		same = same && a[name] == o
	}
	return same
}

// settled clears the marks of guests and hosts, after a decision about all of them.
func (x *index) settled() {
	x.everything, x.guests, x.hosts, x.left = false, map[string]bool{}, map[string]bool{}, map[string]bool{}
}

// unsettled clears the marks that concern orders, after a decision that has to be continued. All its orders are made.
func (x *index) unsettled() {
	for _, name := range x.guestNames() {
		x.guests[name] = true
	}
	x.everything, x.hosts = false, map[string]bool{}
}

func (x *index) seeGuest(name string, before, now *v1.Guest) {
	x.guests[name] = true
	var uids []string
	for _, g := range []*v1.Guest{before, now} {
		if g == nil {
			continue
		}
		x.hosts[g.Host] = true
		if m := x.moves[g.Meta.Uid]; m != nil {
			x.hosts[m.Source], x.hosts[m.Target] = true, true
		}
		x.markCheckpoints(g.Cluster)
		x.markVolumes(x.objects.Clusters[g.Cluster])
		delete(x.ordered, g.Cluster)
		uids = append(uids, g.Meta.Uid)
	}
	if before != nil {
		remove(x.onHost, before.Host, before)
		remove(x.ofCluster, before.Cluster, before)
		delete(x.byUID, before.Meta.Uid)
		delete(x.facts, before)
		delete(x.unplaced, name)
	}
	if now != nil {
		add(x.onHost, now.Host, now)
		add(x.ofCluster, now.Cluster, now)
		x.byUID[now.Meta.Uid] = now
		if now.Host == "" {
			x.unplaced[name] = true
		}
	}
	if before == nil || now == nil || before.Host != now.Host || before.Address != now.Address || before.Index != now.Index ||
		(before.Meta.Deleting == nil) != (now.Meta.Deleting == nil) {
		x.markNetwork(before.GetCluster())
		x.markNetwork(now.GetCluster())
	}
	for _, uid := range uids {
		x.findStranger(uid)
	}
	x.markTogether(before.GetCluster())
	x.markTogether(now.GetCluster())
}

// markTogether marks all guests of a cluster in which the loss of one concerns the others.
func (x *index) markTogether(cluster string) {
	if x.objects.Clusters[cluster].GetSpec().GetOnHostLoss() == v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED {
		return
	}
	for g := range x.ofCluster[cluster] {
		x.guests[g.Meta.Name] = true
	}
}

func (x *index) seeMove(_ string, before, now *v1.Migration) {
	x.moved = true
	for _, m := range []*v1.Migration{before, now} {
		if m == nil {
			continue
		}
		x.guests[m.Guest] = true
		x.hosts[m.Source], x.hosts[m.Target] = true, true
	}
	if before != nil && !migration.Ended(before.State) {
		if x.moves[before.GuestUid] == before {
			delete(x.moves, before.GuestUid)
		}
		delete(x.unended, before.Meta.Uid)
		remove(x.movesAt, before.Source, before)
		remove(x.movesAt, before.Target, before)
	}
	if before != nil && migration.Ended(before.State) {
		x.ended[before.GuestUid] = slices.DeleteFunc(x.ended[before.GuestUid], func(m *v1.Migration) bool { return m == before })
		if len(x.ended[before.GuestUid]) == 0 {
			delete(x.ended, before.GuestUid)
		}
	}
	if now != nil && migration.Ended(now.State) {
		x.ended[now.GuestUid] = append(x.ended[now.GuestUid], now)
	}
	if now != nil && !migration.Ended(now.State) {
		x.moves[now.GuestUid], x.unended[now.Meta.Uid] = now, true
		add(x.movesAt, now.Source, now)
		add(x.movesAt, now.Target, now)
	}
	for _, m := range []*v1.Migration{before, now} {
		if g := x.objects.Guests[m.GetGuest()]; g != nil {
			if detourOf(before) != detourOf(now) {
				x.markNetwork(g.Cluster)
			}
			x.markVolumes(x.objects.Clusters[g.Cluster])
		}
	}
}

func (x *index) seeHost(name string, before, now *v1.Host) {
	x.hostChanged = true
	x.hosts[name] = true
	x.markCopiers()
	for c := range x.checkpointsAt[name] {
		x.markCheckpoint(c)
	}
	x.markGuestsAt(name)
	for g := range x.onHost[name] { // guests here may use volumes of other hosts, which know this host by its address
		x.markVolumes(x.objects.Clusters[g.Cluster])
	}
	for m := range x.movesAt[name] {
		x.markVolumes(x.objects.Clusters[x.objects.Guests[m.Guest].GetCluster()])
	}
	for v := range x.volumesAt[name] {
		x.markUsers(v)
		for _, host := range volumeHosts(v) { // the ends of a move know each other's addresses
			x.hosts[host] = true
		}
	}
	x.shareAgain = true
	if before.GetInfo() != now.GetInfo() {
		x.markPeers(name)
	}
	if before.GetGeneration() != now.GetGeneration() {
		x.everything = true // all hosts are told
	}
	if cutOff(before) != cutOff(now) {
		x.everything = true // all hosts get its key
		for g := range x.onHost[name] {
			x.markNetwork(g.Cluster)
		}
		for m := range x.movesAt[name] {
			x.markNetwork(x.objects.Guests[m.Guest].GetCluster())
		}
	}
	for _, r := range slices.Concat(before.GetRelayed(), now.GetRelayed()) {
		x.hosts[r.Peer], x.hosts[r.Relay] = true, true
	}
	if before == nil || now == nil {
		for _, g := range x.reports[name].Report.GetGuests() {
			x.findStranger(g.Uid)
		}
	}
}

// seeCheckpoint indexes a checkpoint by its cluster, and by the hosts that have or had orders about it.
func (x *index) seeCheckpoint(_ string, before, now *v1.Checkpoint) {
	for _, c := range []*v1.Checkpoint{before, now} {
		if c == nil {
			continue
		}
		for _, host := range checkpointHosts(c) {
			x.hosts[host] = true
			if c == now {
				add(x.checkpointsAt, host, c)
			} else {
				remove(x.checkpointsAt, host, c)
			}
		}
	}
	if before != nil {
		remove(x.checkpointsOf, keyOfCheckpoint(before), before)
		x.markCopiers()
		delete(x.uncopied, before)
		delete(x.unended, before.Meta.Uid)
		x.markCheckpoint(before)
	}
	if now != nil {
		add(x.checkpointsOf, keyOfCheckpoint(now), now)
		if uncopied(now) {
			x.uncopied[now] = true
		}
		if !checkpoint.Ended(now.State) {
			x.unended[now.Meta.Uid] = true
		}
		x.markCheckpoint(now)
		x.markTogether(now.Cluster)
	} else {
		x.markTogether(before.GetCluster())
	}
	x.markCopiers()
}

// seeVolume indexes a volume by its hosts. The guest that uses it, and the hosts of both, have orders about it.
func (x *index) seeVolume(_ string, before, now *v1.Volume) {
	for _, v := range []*v1.Volume{before, now} {
		if v == nil {
			continue
		}
		x.markFiles(snapshotsOf(v.Meta.Name))
		x.markUsers(v)
		x.markDisks(map[string]bool{v.Meta.Uid: true})
		delete(x.unmade, v)
		if v == now && unmade(v) {
			x.unmade[v] = true
		}
		for _, host := range volumeHosts(v) {
			x.hosts[host] = true
			if v == now {
				add(x.volumesAt, host, v)
			} else {
				remove(x.volumesAt, host, v)
			}
		}
	}
}

// markDisks marks the hosts that have disks of volumes. What is ordered about an older disk depends on the volume's record, and
// on whether its host serves it.
func (x *index) markDisks(uids map[string]bool) {
	for host, seen := range x.reports {
		if slices.ContainsFunc(seen.Report.GetVolumes(), func(o *v1.VolumeObserved) bool { return uids[o.Uid] }) {
			x.hosts[host] = true
		}
	}
}

// markUsers marks the guests that use a volume, and their hosts.
func (x *index) markUsers(v *v1.Volume) {
	x.markCluster(v.Cluster)
	for g := range x.ofCluster[v.Cluster] {
		x.hosts[g.Host] = true
	}
}

// markVolumes marks the host of the volume that a cluster uses: its orders name the hosts that may use the volume, and the
// checkpoint to restore.
func (x *index) markVolumes(cluster *v1.Cluster) {
	if v := x.objects.Volumes[cluster.GetSpec().GetVolume()]; v != nil {
		x.hosts[v.Host] = true
	}
}

// markMounts marks the hosts of the clusters that mount storage, because what is allowed may have changed.
func (x *index) markMounts() {
	for name, c := range x.objects.Clusters {
		if len(c.Spec.GetMounts()) == 0 {
			continue
		}
		for g := range x.ofCluster[name] {
			x.hosts[g.Host] = true
			if m := x.moves[g.Meta.Uid]; m != nil {
				x.hosts[m.Source], x.hosts[m.Target] = true, true
			}
		}
	}
}

// markCopiers marks all hosts if files lack copies: the choice of the hosts that fetch them depends on all hosts.
func (x *index) markCopiers() {
	if len(x.uncopied) == 0 {
		return
	}
	for host := range x.objects.Hosts {
		x.hosts[host] = true
	}
}

// checkpointHosts returns the hosts of a checkpoint's guests and files.
func checkpointHosts(c *v1.Checkpoint) (hosts []string) {
	for _, m := range checkpoint.Files(c) {
		hosts = append(hosts, m.Host)
		hosts = append(hosts, m.File.GetHosts()...)
	}
	return hosts
}

// uncopied reports whether files of a whole checkpoint are on too few hosts.
func uncopied(c *v1.Checkpoint) bool {
	return c.State == v1.CheckpointState_CHECKPOINT_STATE_DONE && slices.ContainsFunc(checkpoint.Files(c), func(m *v1.CheckpointMember) bool { return len(m.File.GetHosts()) < CopiesOf(c) })
}

// markCheckpoint marks the hosts that have, or may have to fetch, files of this checkpoint or of others of its cluster or
// volume.
func (x *index) markCheckpoint(c *v1.Checkpoint) {
	if !isSnapshot(c) {
		x.markCheckpoints(c.Cluster)
		return
	}
	x.markFiles(keyOfCheckpoint(c))
	if v := x.objects.Volumes[c.Volume.Guest]; v != nil {
		x.hosts[v.Host] = true
	}
}

// markCheckpoints is markCheckpoint for all checkpoints of a cluster.
func (x *index) markCheckpoints(cluster string) {
	if len(x.checkpointsOf[checkpointsOf(cluster)]) == 0 {
		return
	}
	x.markFiles(checkpointsOf(cluster))
	for g := range x.ofCluster[cluster] {
		x.hosts[g.Host] = true
	}
}

// markFiles marks the hosts that have files of checkpoints, or may be told to fetch one; key is as in checkpointsOf.
func (x *index) markFiles(key string) {
	for c := range x.checkpointsOf[key] {
		if x.uncopied[c] {
			x.markCopiers()
		}
		for _, host := range checkpointHosts(c) {
			x.hosts[host] = true
		}
	}
}

// markPeers marks the networks of all clusters that have guests or moves on a host.
func (x *index) markPeers(host string) {
	for g := range x.onHost[host] {
		x.markNetwork(g.Cluster)
	}
	for m := range x.movesAt[host] {
		if g := x.objects.Guests[m.Guest]; g != nil {
			x.markNetwork(g.Cluster)
		}
	}
}

func (x *index) markGuestsAt(host string) {
	for g := range x.onHost[host] {
		x.guests[g.Meta.Name] = true
	}
	for m := range x.movesAt[host] {
		x.guests[m.Guest] = true
	}
}

func (x *index) markCluster(name string) {
	for g := range x.ofCluster[name] {
		x.guests[g.Meta.Name] = true
	}
	x.markCheckpoints(name)
	x.markNetwork(name)
	x.markVolumes(x.objects.Clusters[name])
}

// markNetwork marks all hosts that have, had, or will have a part in a cluster's network.
func (x *index) markNetwork(cluster string) {
	if n := x.networks[cluster]; n != nil {
		for host := range n.parts {
			x.hosts[host] = true
		}
		delete(x.networks, cluster)
		x.former[cluster] = n
	}
	if len(x.ofCluster[cluster]) == 0 {
		delete(x.former, cluster)
	}
	for g := range x.ofCluster[cluster] {
		x.hosts[g.Host] = true
		if m := x.moves[g.Meta.Uid]; m != nil {
			x.hosts[m.Source], x.hosts[m.Target] = true, true
		}
	}
}

func (x *index) seeReport(host string, before, now Seen) {
	x.hosts[host] = true
	if before.Connected != now.Connected || before.Report.GetSharing() != now.Report.GetSharing() {
		x.markCopiers()
	}
	if before.Connected != now.Connected || before.Report == nil || now.Report == nil || !sameSharing(before.Report, now.Report) {
		x.shareAgain = true
	}
	served := map[string]bool{}
	for v := range x.volumesAt[host] {
		serves := func(s Seen) (is, latest bool) {
			o := volumeOn(s.Report, v.Meta.Uid)
			return s.Connected && o.GetReady(), s.Connected && latestDisk(v, o)
		}
		is, latest := serves(now)
		if was, wasLatest := serves(before); is != was || latest != wasLatest {
			served[v.Meta.Uid] = true
		}
	}
	if len(served) > 0 {
		x.markDisks(served)
	}
	x.markGuestsAt(host)
	for _, o := range before.Report.GetCheckpoints() {
		delete(x.filesAt[o.CheckpointId], host)
		if len(x.filesAt[o.CheckpointId]) == 0 {
			delete(x.filesAt, o.CheckpointId)
		}
	}
	for _, o := range now.Report.GetCheckpoints() {
		if x.filesAt[o.CheckpointId] == nil {
			x.filesAt[o.CheckpointId] = map[string]bool{}
		}
		x.filesAt[o.CheckpointId][host] = true
	}
	uids := map[string]bool{}
	for _, g := range before.Report.GetGuests() {
		delete(x.reporting[g.Uid], host)
		uids[g.Uid] = true
	}
	if now.Connected {
		for _, g := range now.Report.GetGuests() {
			if x.reporting[g.Uid] == nil {
				x.reporting[g.Uid] = map[string]bool{}
			}
			x.reporting[g.Uid][host] = true
			uids[g.Uid] = true
		}
	}
	for uid := range uids {
		if g := x.byUID[uid]; g != nil {
			x.guests[g.Meta.Name] = true
		}
		x.findStranger(uid)
		if len(x.reporting[uid]) == 0 {
			delete(x.reporting, uid)
		}
	}
}

// findStranger finds out from all hosts' reports whether a guest is a stranger.
func (x *index) findStranger(uid string) {
	g := x.byUID[uid]
	last := max(g.GetLastEpoch(), g.GetEpoch())
	stranger, is := Stranger{}, false
	for _, host := range sortedKeys(x.reporting[uid]) {
		seen := GuestOn(x.reports[host].Report, uid)
		if seen != nil && x.objects.Hosts[host] != nil && runs(seen) && (g == nil || seen.Epoch > last) {
			stranger, is = Stranger{Host: host, Name: seen.Name, Epoch: seen.Epoch, LastEpoch: last}, true
		}
	}
	before, was := x.strangers[uid]
	if is == was && before == stranger {
		return
	}
	delete(x.strangers, uid)
	if is {
		x.strangers[uid] = stranger
	}
	for host := range x.reporting[uid] {
		x.hosts[host] = true
	}
	if g != nil {
		x.guests[g.Meta.Name], x.hosts[g.Host] = true, true
		x.markNetwork(g.Cluster)
	}
}

// guestsOf returns a cluster's guests in the order of indices. The caller must not change the slice.
func (x *index) guestsOf(cluster string) []*v1.Guest {
	if list, is := x.ordered[cluster]; is {
		return list
	}
	list := make([]*v1.Guest, 0, len(x.ofCluster[cluster]))
	for g := range x.ofCluster[cluster] {
		list = append(list, g)
	}
	byIndex(list)
	x.ordered[cluster] = list
	return list
}

// guestNames returns the names of the guests to decide about, sorted.
func (x *index) guestNames() []string {
	if x.everything {
		return sortedKeys(x.objects.Guests)
	}
	names := make([]string, 0, len(x.guests)+len(x.unplaced))
	for name := range x.guests {
		names = append(names, name)
	}
	for name := range x.unplaced {
		if !x.guests[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// hostNames returns the names of the hosts whose orders must be made, sorted.
func (x *index) hostNames() []string {
	if x.everything {
		return sortedKeys(x.objects.Hosts)
	}
	return sortedKeys(x.hosts)
}
