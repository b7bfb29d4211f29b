package main

// list.go - the mutants: faults that are put into the product, one at a time, to see whether the simulator finds them.

// mutant replaces texts by others. Each text occurs once in its file.
type mutant struct {
	name  string
	edits []edit
}

// edit is one replacement.
type edit struct {
	file, old, new string
}

var mutants = []mutant{
	// Policies.
	{"policies move guests to hosts that take none", []edit{{"placement/placement.go", "		return h.Withdrawn\n", "		return \"\"\n"}}},
	{"a host never is its owner's no more", []edit{{"policy/signals.go",
		`return false, s.Rule.Idle.When.Text + s.Rule.Idle.hold(), time.Time{}`, `return true, "", time.Time{}`}}},
	{"guests are slowed down where the owner is away", []edit{{"policy/policy.go",
		"	w := Withdrawn(h, HarvestName)\n", "	w := Withdrawn(h, HarvestName)\n	if w == nil {\n		w = &v1.Withdrawal{}\n	}\n"}}},
	{"a policy's move begins though its reason has ended", []edit{{"core/moves.go", "		c.write(Expect, source) // its withdrawal is the reason of the move\n", ""}}},
	{"guests that do not leave are not stopped", []edit{{"core/policies.go",
		"		p.dueHost[host] = at\n", "		_ = at\n"}}},
	// Suspension.
	{"a suspended cluster goes back to any checkpoint", []edit{{"core/suspend.go", "p.savedSince(cluster, latest, w) && ", ""}}},
	{"a cluster is suspended twice with one checkpoint", []edit{{"core/suspend.go",
		" && !taken.After(p.Now) && cluster.GetRestore().GetCheckpointUid() != c.Meta.Uid", ""}}},
	{"a suspended cluster does not go on", []edit{{"core/restores.go", "		if !p.ended(guests) {\n", "		if !p.ended(guests) || cluster.Restore.Policy != \"\" {\n"}}},
	// Checkpoints.
	{"states are taken before all guests stand", []edit{{"checkpoint/checkpoint.go", "STATE_STOPPING:  {stopped, ready,", "STATE_STOPPING:  {ready, ready,"}}},
	{"a volume is copied when guests go on", []edit{{"checkpoint/checkpoint.go",
		"STATE_STOPPING:  {stopped, ready, v1.CheckpointState_CHECKPOINT_STATE_FREEZING,", "STATE_STOPPING:  {stopped, ready, v1.CheckpointState_CHECKPOINT_STATE_TAKING,"}}},
	{"a volume gets another host under its guest", []edit{{"core/volumes.go",
		"p.volumeAway(v, replaceHostAfter) && p.volumeRestoredFrom(v) != nil:", "p.volumeAway(v, time.Second) && p.Clusters[v.Cluster] != nil:"}}},
	{"a snapshot is put back while a cluster uses the volume", []edit{{"core/admission_volumes.go", "	if err := a.unused(v); err != nil {\n		return change, \"\", err\n	}\n", ""}}},
	{"a cluster gets a volume that is being put back", []edit{{"core/admission_volumes.go", "	case restoring(v):\n		return precondition(\"volume %s is being put back to snapshot %s; `watari volume show %s` shows when that is done\", name, v.Restore.Checkpoint, name)\n", ""}}},
	{"a verification never ends", []edit{{"core/verify.go", "	case o.GetTried() != v.Id:", "	case o != nil:"}}},
	{"a host does not notice that what others fetch from it is damaged", []edit{{"core/checkpoints.go", "cmp.Or(p.verifiesFor(c, m), p.fetchedFor(c, m))", "p.verifiesFor(c, m)"}}},
	{"a checkpoint is deleted on which another builds", []edit{{"core/checkpoints.go", "	if p.needed(c) || c.Pinned ||", "	if c.Pinned ||"}}},
	{"a host restores without the file on which another builds", []edit{{"core/restores.go", "range slices.Backward(chain[1:]) {", "range slices.Backward(chain[:0]) {"}}},
	{"guests go on before all are restored", []edit{{"core/restores.go", "		case !p.restored(g):\n			whole = false\n", "		case !p.restored(g):\n			whole = whole && true\n"}}},
	{"a cluster is restored beside copies that run", []edit{{"core/evidence.go", " || c.GetRestore().GetState() == v1.RestoreState_RESTORE_STATE_ENDING", ""},
		{"core/restores.go", `return g.Host != "" || p.changed(g) ||`, "return p.changed(g) ||"}}},
	{"a host without room for a copy is asked for ever", []edit{{"core/checkpoints.go", "				p.noRoom[key] = p.Now.Add(noRoomFor)\n", ""}}},
	{"any host is believed about any volume", []edit{{"core/volumes.go", "	return p.Sealed == nil || p.Sealed(host, o.Uid, o.GetFacts())\n", "	return true\n"}}},
	{"a guest that stands for a checkpoint is resumed", []edit{{"agent/machine/hold.go", "	g.held = true\n", ""}}},
	// Resizes.
	{"guests that are removed from their cluster run on", []edit{{"core/evidence.go",
		"	return g.Meta.Deleting != nil || c == nil", "	return c == nil"}}},
	{"a guest is added while an earlier one of its name is being removed", []edit{{"core/admission_resize.go",
		"slices.IndexFunc(guests, removing); i >= 0", "slices.IndexFunc(guests, removing); i < -1"}}},
	{"a cluster shrinks, and its guests stay", []edit{{"core/admission_resize.go",
		"		g.Meta.Deleting = timestamppb.New(a.Now)\n", "		_ = timestamppb.New(a.Now)\n"}}},
	{"guests are rebalanced again within their cool-down", []edit{{"core/rebalance.go",
		"&longer, g, ended, l.now)\n", "&longer, g, nil, l.now)\n"}}},
	{"a move is proposed that gains too little", []edit{{"rebalance/rebalance.go",
		"return net >= p.LeastGain && net > 1e-9", "return net > 1e-9"}}},
	{"what a move does to its target is not counted", []edit{{"rebalance/load.go",
		"hostCost(a, s.Demand[from]-d) + hostCost(b, s.Demand[to]) - hostCost(b, s.Demand[to]+d)", "hostCost(a, s.Demand[from]-d)"}}},
	{"locality takes guests for others", []edit{{"core/locality.go",
		"	for i, g := range guests {\n		at[g.Meta.Uid] = i\n", "	for i, g := range guests {\n		at[g.Meta.Uid] = len(guests) - 1 - i\n"}}},
	{"locality moves guests that cool down", []edit{{"core/locality.go",
		"	return l.whyForbidden(g, policy.LocalityName)\n", "	return \"\"\n"}}},
	{"locality undoes a spread over sites", []edit{{"core/locality.go", "		p.Keep = locality.KeepSites\n", ""}}},
	{"a policy with an error comes into force", []edit{{"core/admission_policies.go",
		"	if _, err := policy.Parse(text); err != nil {\n", "	if _, err := policy.Parse(text); err != nil && text == \"\" {\n"}}},
	{"two policies move a guest at once", []edit{{"core/rebalance.go", " || moves && p.asked[m.GuestUid]", " || moves && m == nil"}}},
	{"locality moves half of a swap", []edit{{"core/locality.go", "	for _, m := range plan.Moves {\n		p.beginMove(", "	for _, m := range plan.Moves[:1] {\n		p.beginMove("}}},
	// Orders and evidence.
	{"the last orders are sent again in a new session, and followed in any boot", []edit{
		{"agent/machine/term.go", `if w.BootId != "" && w.BootId != m.config.BootID {`, `if false {`},
		{"sim/manager.go", "	hosts   map[string]*connection\n", "	hosts   map[string]*connection\n	last    map[string]*v1.HostWanted\n"},
		{"sim/manager.go", "		if c := m.hosts[host]; c != nil {\n", "		if m.last == nil {\n			m.last = map[string]*v1.HostWanted{}\n		}\n		m.last[host] = w\n		if c := m.hosts[host]; c != nil {\n"},
		{"sim/link.go", "			c.heard = true\n", "			c.heard = true\n			if m.last[c.host.name] != nil {\n				c.order(m.last[c.host.name])\n			}\n"}}},
	{"a grant holds in any boot", []edit{{"core/evidence.go",
		`case g.BootId == "" || BootID(s, r, host) == g.BootId:`, `case true:`}}},
	{"a grant is released though a process lives", []edit{{"core/lifecycle/lifecycle.go",
		`if h.Guest == nil || h.Guest.Epoch != g.Epoch || h.Guest.Process {`, `if h.Guest == nil || h.Guest.Epoch != g.Epoch {`}}},
	{"a failed start is believed of any agent", []edit{{"core/lifecycle/lifecycle.go",
		`return h.Bound, "it could not be started: "`, `return true, "it could not be started: "`}}},
	{"a failed start leaves no tombstone", []edit{{"agent/machine/step.go",
		`return act(end(newRecord(o.Wanted, PhaseEnded), OutcomeFailed, o.Failure.Message))`, `return Decision{}`}}},
	{"a removed host goes on", []edit{{"agent/machine/orders.go",
		"func (m *Machine) Evict(now time.Time) {\n", "func (m *Machine) Evict(now time.Time) {\n\tif true {\n\t\treturn\n\t}\n"}}},
	{"an unreadable record counts as none", []edit{{"agent/machine/guest.go",
		`if o.Err != nil && !o.Damaged {`, "if o.Err != nil {\n\t\to = Result{}\n\t}\n\tif false {"}}},
	{"a create is not waited for that may come late", []edit{{"agent/machine/operation.go",
		`g.late = g.late || op.uncertain`, `g.late = false`}}},
	{"nobody looks for processes", []edit{{"agent/machine/script.go",
		`if len(o.PIDs) > 0 {`, `if false {`}}},
	// Terms and epochs.
	{"an earlier term's orders are followed", []edit{{"agent/machine/term.go",
		`case w.Term < newest:`, `case false:`}}},
	{"a term is in force before it is on disk", []edit{{"agent/machine/term.go",
		"	if w.Term <= t.term {\n		return false\n	}", "	if w.Term > t.term {\n		t.term = w.Term\n	}\n	if w.Term <= t.term {\n		return false\n	}"}}},
	{"late orders, and those for an older epoch, are followed", []edit{
		{"agent/machine/orders.go", `if (mark{w.Term, w.Generation}).before(m.taken) {`, `if false {`},
		{"agent/machine/step.go", `if o.Record != nil && o.Wanted.Epoch < o.Record.Epoch {`, `if false {`}}},
	{"a grant takes the epoch of the one before", []edit{{"core/placing.go",
		"	update.LastEpoch++\n", "	update.LastEpoch = max(update.LastEpoch, 1)\n"}}},
	{"a move takes the epoch of the grant", []edit{{"core/moves.go",
		"			grant.LastEpoch++\n", ""}}},
	{"a report of any epoch counts", []edit{{"core/lifecycle/lifecycle.go",
		`if h.Guest == nil || h.Guest.Epoch != g.Epoch || h.Guest.Process {`, `if h.Guest == nil || h.Guest.Process {`}}},
	// Records before acts.
	{"a guest is started before its record is written", []edit{{"agent/machine/step.go",
		`return act(Action{Kind: ActionRecord, Record: newRecord(w, PhaseStarted)}, Action{Kind: ActionStart})`,
		`return act(Action{Kind: ActionStart}, Action{Kind: ActionRecord, Record: newRecord(w, PhaseStarted)})`}}},
	{"a guest is resumed without a record", []edit{{"agent/machine/step.go",
		`return act(record(r, PhaseStarted), Action{Kind: ActionResume})
		}
	case PhaseStarted:`, `return act(Action{Kind: ActionResume})
		}
	case PhaseStarted:`}}},
	// Moves.
	{"the grant passes on before the source has sent the guest", []edit{
		{"migration/migration.go", "	received := at(o.Target, m.TargetEpoch) == v1.GuestCondition_GUEST_CONDITION_RECEIVED\n",
			"	received := at(o.Target, m.TargetEpoch) == v1.GuestCondition_GUEST_CONDITION_RECEIVED\n	if received {\n		return Decision{State: v1.MigrationState_MIGRATION_STATE_SWITCHING}\n	}\n"},
		{"migration/migration.go", "	case !sourceGone(m, o):\n		return waitFor(m, \"waits for host %s to confirm that its copy is gone\", m.Source)\n", ""}}},
	{"a target that receives counts as empty", []edit{{"migration/migration.go",
		`at(o.Target, m.TargetEpoch) != v1.GuestCondition_GUEST_CONDITION_RECEIVING`, `true`}}},
	{"a move that has sent the guest can be rolled back", []edit{{"migration/migration.go",
		"	case v1.GuestCondition_GUEST_CONDITION_SENT:\n		// From now on only the target has a copy, so even a cancelled move must be completed.\n		return Decision",
		"	case v1.GuestCondition_GUEST_CONDITION_SENT:\n		if m.Cancel {\n			return rollBack(\"cancelled\")\n		}\n		return Decision"}}},
	{"a guest is taken from the target though it ran on at the source", []edit{{"migration/migration.go",
		`if o.Source.Guest.GetRanOn() && o.Source.Guest.MigrationId == m.GetMeta().GetUid() {`, `if false {`}}},
	{"a copy at the target counts as gone though a process lives", []edit{{"migration/migration.go",
		`	case o.Target.Dead, gone(o.Target, m.TargetEpoch),
		condition == v1.GuestCondition_GUEST_CONDITION_FAILED && o.Target.Current:`,
		`	case o.Target.Dead, condition == v1.GuestCondition_GUEST_CONDITION_GONE,
		condition == v1.GuestCondition_GUEST_CONDITION_FAILED && o.Target.Current:`}}},
	{"a guest continues from the target though its source was removed as lost", []edit{{"migration/migration.go",
		`case o.Source.Fenced:`, `case false:`}}},
	{"how a guest ended at its source is forgotten before the store has a decision", []edit{{"core/orders.go",
		`&& !unread && decided {`, `&& !unread && (decided || true) {`}}},
	{"a record that cannot be read is not reported after an agent's start", []edit{{"agent/machine/machine.go",
		`	for _, uid := range slices.Sorted(maps.Keys(loaded.Unread)) {`, `	for _, uid := range slices.Sorted(maps.Keys(loaded.Unread))[:0] {`}}},
	{"room at a move's target is not counted", []edit{{"core/placing.go",
		"		if m := moves[g.Meta.Uid]; m != nil && m.Target != g.Host {\n			room.take(m.Target, g.Shape)\n		}\n", ""}}},
	{"a spare takes any guest", []edit{{"placement/placement.go",
		`refuse(h.Spare && !r.Standby, `, `refuse(h.Spare && !r.Standby && r.Exclude != nil, `}}},
	// Admission.
	{"a quota leaves guests out that exist already", []edit{{"core/admission_clusters.go",
		`usedVCPUs, usedMemory := used(s, owner)`, `usedVCPUs, usedMemory := uint64(0), uint64(0)`}}},
	{"a prefix is given though a cluster has it that is being deleted", []edit{{"core/prefixes.go",
		`if p, err := netip.ParsePrefix(c.Prefix); err == nil && p.Addr().Is4() {`, `if p, err := netip.ParsePrefix(c.Prefix); err == nil && c.Meta.GetDeleting() == nil {`}}},
	{"a host is fenced that is connected", []edit{{"core/admission_hosts.go", `case lost && connected:`, `case lost && connected && h == nil:`}}},
	// What has changed.
	{"a clock that is set back is not noticed", []edit{{"core/core.go", "	if day.Before(c.last) {", "	if false {"}}},
	{"a guest is let go before its host has taken up that it is not wanted", []edit{{"core/core.go",
		`return connected && sent != nil && report.GetTerm() == p.Core.Term && report.GetGeneration() >= sent.Generation`,
		`return connected && (sent != nil || report != nil)`}}},
	{"guests are not decided again when their host reports", []edit{{"core/index.go",
		"	x.markGuestsAt(host)\n	for _, o := range before", "	for _, o := range before"}}},
	{"routes are not sent again when a guest moves", []edit{{"core/index.go",
		"		if g := x.objects.Guests[m.GetGuest()]; g != nil {\n", "		if g := x.objects.Guests[m.GetGuest()]; g != nil && m == nil {\n"}}},
	{"orders are not made again when a host reports", []edit{{"core/index.go",
		"func (x *index) seeReport(host string, before, now Seen) {\n	x.hosts[host] = true\n", "func (x *index) seeReport(host string, before, now Seen) {\n"}}},
	// Abstract clusters.
	{"guests of abstract clusters stay where they are", []edit{{"core/apportion.go",
		`if p.Now.Sub(since) >= p.hurried(apportionHold) {`, `if p.Now.Sub(since) >= p.hurried(apportionHold) && c == nil {`}}},
	{"guests of abstract clusters move to and fro", []edit{{"core/apportion.go",
		`hurried.CoolDown = p.hurried(hurried.CoolDown)`, `hurried.CoolDown = 0`}}},
	// Leases.
	{"a lease counts as over before its host has ended the guest", []edit{{"core/leases.go",
		`return length - seen.Unrenewed`, `return length/2 - seen.Unrenewed`}}},
	{"a lease that is over is renewed", []edit{
		{"core/leases.go", `g.host == host && !g.over(now)`, `g.host == host`},
		{"core/leases.go", `known == nil || known.host != g.Host || known.epoch != g.Epoch`, `known == nil || known.host != g.Host`}}},
	{"a host uses more of a lease than the manager gives", []edit{{"agent/machine/lease.go",
		`const leaseShare = 0.9`, `const leaseShare = 1.5`}}},
	{"a guest is started without its lease", []edit{
		{"agent/machine/step.go", "	if o.Unleased {\n		return Decision{}\n	}\n", ""},
		{"agent/machine/step.go", `if o.Domain == domain.Paused && !o.Unleased {`, `if o.Domain == domain.Paused {`},
		{"agent/machine/lease.go", "		return l.until, true\n	}\n	return 0, true\n", "		return l.until, true\n	}\n	return 0, false\n"}}},
	{"a guest continues from the target though its source was out of reach until its lease ended", []edit{{"core/moves.go",
		`end.Dead, end.Fenced = true, true`, `end.Dead = true`}}},
	{"a guest whose lease ended is decided about only when something else happens", []edit{{"core/leases.go",
		`	p.wake(g.Meta.Name, at)`, `	_ = at`}}},
	{"a restore that all hosts have refused does not begin again", []edit{{"core/placing.go", "		p.restoreLater(cluster, g)\n", ""}}},
	// Relays.
	{"a relay is chosen that only one of two hosts reaches", []edit{{"core/relay.go",
		"pathTo(p, pair.a, x).GetAnswers() && pathTo(p, pair.b, x).GetAnswers()", "pathTo(p, pair.a, x).GetAnswers()"}}},
	{"hosts that do not hear each other get no relay", []edit{{"core/relay.go",
		`if !dialOnly && !silent(p, pair, "") {`, `if !dialOnly {`}}},
	{"two pairs have one port of a relay", []edit{{"core/relay.go",
		"	for used[port] {\n", "	for false {\n"}}},
	{"a relay outlives its cluster", []edit{{"core/relay.go",
		" || a.Site == b.Site || !p.shareCluster(pair) {", " || a.Site == b.Site || now == nil && !p.shareCluster(pair) {"}}},
	{"a relay that is gone stays", []edit{{"core/relay.go",
		`		return "is out of reach"`, `		return ""`}}},
	{"the hosts of a pair are not told of a new relay", []edit{{"core/index.go",
		"		x.hosts[r.Peer], x.hosts[r.Relay] = true, true\n", "		_ = r\n"}}},
}
