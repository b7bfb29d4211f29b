package sim

// host.go - a host: its power, disk, hypervisor and agent.

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/internal/protocol"
)

// host is one machine.
type host struct {
	sim  *Sim
	name string
	uid  string // of its object, and in its certificate
	site string

	behind    behind
	up        bool
	boots     int
	info      *v1.HostInfo // of a replayed host; nil: it is made up
	boot      string
	powers    int           // how often it was switched on
	offset    time.Duration // of its time of day
	cut       bool          // it cannot reach managers
	drift     int           // thousandths by which its clock is too fast
	poweredAt time.Time
	watched   map[string]time.Duration // until when the watchdog lets guests run, by uid

	// On disk.
	term       uint64
	stamp      *v1.Stamp
	records    map[string]*machine.Record
	full       bool // writes fail, and the reserved space is used up
	takesTerms bool // the term can be written even if the disk is full
	setAside   int  // number of vital writes for which a full disk has reserved space

	// The hypervisor.
	copies   map[string]*copyOf
	files    map[fileOf]uint64 // of checkpoints, on disk: the epoch of the copy that was saved; of a volume 1
	indexed  map[string]string // the checkpoint whose file of a guest the next one may build on, by guest uid
	verified map[fileOf]verifiedFile
	// verifying is what the latest orders ask for. Results of earlier orders may come later, and are ignored.
	verifying map[fileOf]verifiedFile
	keeps     map[fileOf]bool // the files that the latest orders ask for
	// cramped: the host never has room for copies of checkpoints, even after the last fault. refused are the files that it does
	// not fetch. turnedDown are the files that it has ever refused to fetch: it is not asked for them again for a long time.
	cramped             bool
	refused, turnedDown map[fileOf]bool
	fetches             map[fileOf]int             // the files that it fetches, and the life in which that began
	failures            map[fileOf]int             // of the fetch of a file
	altered             map[fileOf]bool            // damaged files; nobody has noticed the damage yet
	disks               map[string]*disk           // volumes, by uid
	failing             map[string]bool            // volumes that the host could not put back, by uid
	received            map[string]*received       // copies of volumes that other hosts send, by uid
	diskWork, copyWork  map[string]bool            // volumes whose disk, or copy from another host, is worked on, by uid
	claims              map[string]*v1.VolumeFacts // volumes that the host reports and does not have, by uid
	libvirt             libvirtState
	waiting             []func() // calls that hang until libvirt goes on

	// The agent. life grows with each one.
	agent    *machine.Machine
	life     int
	link     *connection
	network  uint64               // generation in force
	net      *v1.NetworkWanted    // in force; nil: this agent has none
	netOf    [2]uint64            // its term and generation
	paths    map[string]path      // to WireGuard's peers
	answered map[string]time.Time // since when a host answers probes
	evicted  bool                 // the host was told that it was removed
	planned  bool                 // a report is planned
	ticking  time.Time
	expected map[string]string  // guest uid: the migration that is admitted
	cuttable map[uint64]func()  // acts under way that can be interrupted
	takings  map[string]*taking // checkpoints that are being made, or have failed; by checkpoint, and by checkpoint and volume
	// volumeOrders are the orders about volumes that the host keeps, by uid.
	volumeOrders map[string]*v1.VolumeWanted
	prefers      *manager             // the manager that it dials as long as that lives; nil: any
	lateNext     bool                 // the next orders that end a guest come late, over a connection that breaks
	finishing    map[string]time.Time // until when libvirt is still busy with the end of a transfer, by guest uid
	owner        time.Time            // when the owner last pressed a key; in the future: the owner works here until then
	vouched      bool                 // a person has wrongly said that the host is lost
}

// libvirtState says how libvirt's daemon is.
type libvirtState int

const (
	libvirtUp libvirtState = iota
	libvirtDown
	libvirtHangs
)

// copyOf is a copy of a guest: a QEMU process.
type copyOf struct {
	uid, name string
	epoch     uint64
	state     domain.State
	// whole: all of the guest's memory is here.
	whole bool
	// stands: the guest was stopped for a checkpoint. saved: it was restored from a checkpoint, and has not run since.
	stands, saved bool
	// doubtful: the copy came from a host that was removed as lost, so nobody can say whether it has the guest's last state.
	doubtful bool
	// hidden: libvirt does not list the copy, although its process exists.
	hidden bool
	// broken: the copy has met an internal error of QEMU, and cannot continue.
	broken bool
	since  time.Time
	// disk is the volume that the copy uses, diskAt the volume's host, and line the line of the disk to which its memory
	// belongs; empty: it uses no volume.
	disk, diskAt, line string
}

func newHost(s *Sim, name string) *host {
	return &host{sim: s, name: name, site: name[:1], finishing: map[string]time.Time{}, records: map[string]*machine.Record{}, files: map[fileOf]uint64{}, takings: map[string]*taking{}, copies: map[string]*copyOf{},
		disks: map[string]*disk{}, received: map[string]*received{}, diskWork: map[string]bool{}, copyWork: map[string]bool{}, indexed: map[string]string{}, verified: map[fileOf]verifiedFile{}, verifying: map[fileOf]verifiedFile{}, altered: map[fileOf]bool{},
		refused: map[fileOf]bool{}, turnedDown: map[fileOf]bool{}, fetches: map[fileOf]int{}, failures: map[fileOf]int{}, claims: map[string]*v1.VolumeFacts{}, failing: map[string]bool{}}
}

// now returns the host's time. It also tells the agent the time since the boot, because each call of the agent needs both.
func (h *host) now() time.Time {
	if h.agent != nil {
		h.agent.Clock(h.clock())
	}
	return h.sim.reading(h.offset, h.clock())
}

// power switches the host on.
func (h *host) power() {
	if h.up {
		return
	}
	h.powers++
	h.up, h.libvirt, h.poweredAt, h.watched = true, libvirtUp, h.sim.now, nil
	h.newBoot()
	h.sim.tell(h.name, "boots, boot id %s", h.boot)
	h.startAgent()
}

// newBoot gives the host another boot id.
func (h *host) newBoot() {
	h.boots++
	h.boot = fmt.Sprintf("%s-boot-%d", h.name, h.boots)
}

// crash switches the host off.
func (h *host) crash() {
	if !h.up {
		return
	}
	h.sim.tell(h.name, "loses power")
	h.killAgent()
	h.up = false
	h.waiting = nil
	for _, uid := range slices.Sorted(maps.Keys(h.copies)) {
		h.sim.died(h, h.copies[uid], "its host lost power")
	}
	h.copies = map[string]*copyOf{}
	h.sim.breakTransfers(h, "a host lost power")
}

// startAgent starts an agent, which reads what is on disk.
func (h *host) startAgent() {
	if !h.up || h.agent != nil {
		return
	}
	h.life++
	loaded := machine.Loaded{Term: h.term, Stamp: h.stamp, Records: map[string]*machine.Record{}, Unread: map[string]error{}, Leases: maps.Clone(h.watched)}
	if h.termUnreadable() {
		loaded.Term, loaded.Stamp, loaded.TermUnread = 0, nil, errInput
	}
	for uid, r := range h.records {
		if h.sim.faulty && h.sim.unreadable[h.name+"/"+uid] {
			loaded.Unread[uid] = errInput
			continue
		}
		copied := *r
		loaded.Records[uid] = &copied
	}
	h.expected, h.cuttable, h.network = map[string]string{}, map[uint64]func(){}, 0
	h.net, h.paths, h.answered = nil, nil, nil
	h.ticking = time.Time{}
	h.agent = machine.New(h.now(), machine.Config{Host: h.name, BootID: h.boot}, loaded)
	h.sim.tell(h.name, "its agent starts")
	clear(h.diskWork)
	clear(h.copyWork)
	for _, d := range h.disks {
		d.sending = nil
	}
	for _, r := range h.received {
		r.ready = false
	}
	h.dial()
	h.pump()
	h.workOnVolumes()
	h.heartbeat(h.life)
	if h.sim.foresight == nil {
		h.keepOn(h.life)
	}
}

// killAgent ends the agent. Acts that are under way may still have their effects.
func (h *host) killAgent() {
	if h.agent == nil {
		return
	}
	h.sim.tell(h.name, "its agent is killed")
	h.agent = nil
	h.loseTakings()
	h.life++
	if h.link != nil {
		h.link.cut("the agent was killed")
		h.link = nil
	}
	h.sim.breakTransfers(h, "an agent was killed")
}

// heartbeat reports every few seconds.
func (h *host) heartbeat(life int) {
	if h.sim.foresight != nil {
		return // in a replay changes are reported at once, and nothing else matters
	}
	h.sim.after(5*time.Second, func() {
		if h.life == life && h.agent != nil {
			h.report()
			h.heartbeat(life)
		}
	})
}

// take hands orders to the agent.
func (h *host) take(w *v1.HostWanted) {
	if h.agent == nil {
		return
	}
	if err := h.agent.Take(h.now(), w); err != nil {
		h.sim.tell(h.name, "refuses orders: %v", err)
	}
	h.pump()
}

// pump carries out the acts that the machine asks for, plans its next tick, and a report.
func (h *host) pump() {
	for h.agent != nil {
		acts := h.agent.Acts()
		if len(acts) == 0 {
			break
		}
		for _, a := range acts {
			h.carryOut(a)
		}
	}
	if h.agent == nil {
		return
	}
	if wake := h.agent.Wake(); !wake.IsZero() {
		at := h.sim.now.Add(wake.Sub(h.now()))
		if at.Before(h.sim.now.Add(time.Millisecond)) {
			at = h.sim.now.Add(time.Millisecond)
		}
		if h.ticking.Before(h.sim.now.Add(time.Microsecond)) || at.Before(h.ticking) {
			h.ticking = at
			life := h.life
			h.sim.at(at, func() {
				if h.life == life && h.agent != nil {
					h.ticking = time.Time{}
					h.agent.Tick(h.now())
					h.pump()
				}
			})
		}
	}
	h.report()
}

// ended tells the machine that an act has ended, unless its agent has ended first.
func (h *host) ended(life int, id uint64, r machine.Result) {
	if h.life != life || h.agent == nil {
		return
	}
	delete(h.cuttable, id)
	h.agent.Ended(h.now(), id, r)
	h.pump()
}

// report plans a report, if one is not planned already.
func (h *host) report() {
	if h.planned || h.link == nil {
		return
	}
	h.planned = true
	h.sim.after(h.sim.latency(time.Millisecond), func() {
		h.planned = false
		if h.agent == nil || h.link == nil || h.link.life != h.life {
			return
		}
		h.link.send(h.observed())
	})
}

// observed returns the host's present report.
func (h *host) observed() *v1.HostObserved {
	o := h.agent.Report(h.now())
	pids := map[string][]int{}
	for uid := range h.copies {
		pids[uid] = []int{1}
	}
	var err error
	if h.sim.faulty && h.sim.chance(1) {
		err, pids = errTable, nil
	}
	machine.SeeProcesses(o, pids, err)
	o.Protocol = protocol.Version
	o.Info = &v1.HostInfo{Leases: true, Increments: h.name != "a1" || h.sim.everyIncrement, BootId: h.boot, Site: h.site, Cores: 8, MemoryBytes: 4 << 30, LanAddress: "198.18.0.1", TunnelPort: 7071, Lent: true, CpuShare: share,
		CoreSpeed: h.speed(), WireguardPublicKey: h.name, RelayPort: relayPort, DialOnly: h.behind.said}
	if h.behind.plain {
		o.Info.RelayPort, o.Info.DialOnly = 0, false
	}
	if h.info != nil {
		o.Info = h.info
	}
	o.NetworkGeneration, o.Paths = h.network, h.observePaths()
	o.Volumes, o.KeepsVolumes, o.Load = h.reportVolumes(), true, &v1.HostLoad{DiskAvailableBytes: diskSpace}
	o.VolumeCopies, o.MovesVolumes, o.TriesVolumes = h.reportCopies(), true, true
	o.Checkpoints, o.Sharing, o.Images = h.reportCheckpoints(), true, []string{"sha256:" + image}
	for _, uid := range slices.Sorted(maps.Keys(h.records)) {
		o.Epochs = append(o.Epochs, &v1.KnownEpoch{Uid: uid, Epoch: h.records[uid].Epoch})
	}
	return proto.CloneOf(o)
}

// live returns the copies that execute guest code or may be allowed to, by uid.
func (h *host) live() []*copyOf {
	var list []*copyOf
	for _, uid := range slices.Sorted(maps.Keys(h.copies)) {
		list = append(list, h.copies[uid])
	}
	return list
}
