package core

// admission_clusters.go - creating and deleting clusters: bounds of specifications, quotas, room.

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/compatibility"
	"watari/internal/mounts"
)

// Bounds of what can be asked for.
const (
	// maxGuests bounds the guests of a cluster, which is made in one etcd transaction. The embedded etcd takes twice as
	// many.
	maxGuests      = 1000
	maxVCPUs       = 512
	minMemoryBytes = 64 << 20
	maxMemoryBytes = 16 << 40
	// A lease is renewed each second. A shorter lease would end when a machine is busy.
	minLeaseMs = 10_000
	maxLeaseMs = 24 * 3600_000
)

// overlayMTU is the MTU of guests if hosts' LANs have the usual 1500; encapsulation between sites takes the rest. A guest
// may move to any site, so its MTU is the smallest that works everywhere.
const (
	overlayMTU      = 1420
	overlayOverhead = 80
	// leastMTU is the least MTU of a LAN (RFC 8200, section 5). Smaller values from hosts are not believed: they would slow
	// down everybody's new clusters.
	leastMTU = 1280
)

// cpuRule matches names of CPU models.
var cpuRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ClusterRequest asks for a cluster.
type ClusterRequest struct {
	Name string
	Spec *v1.ClusterSpec
	// UID becomes the uid of the cluster.
	UID string
	// MaxOps is how many operations a change may hold, its event among them; 0: any number.
	MaxOps int
}

// besidesGuests is how many operations a change of all guests of a cluster has at most beside them: of the cluster, a volume, a checkpoint,
// a move and events.
const besidesGuests = 6

// storable refuses a cluster of so many guests that a change of all of them, such as a restore, would have more operations than the store
// allows.
func storable(guests uint32, maxOps int) error {
	if most := maxOps - besidesGuests; maxOps > 0 && int(guests) > most {
		return precondition("%d guests: the manager's etcd lets a cluster have %d; start etcd with --max-txn-ops=2048 for more", guests, most)
	}
	return nil
}

// CreateCluster makes a cluster and its guests, which have no hosts yet. If an equal cluster exists, the change has no
// operations. The cluster, which is the first operation's object, has no authority (CaCertificate, CaKey) yet.
func (a *Admission) CreateCluster(r ClusterRequest) (change Change, err error) {
	name, spec := r.Name, proto.CloneOf(r.Spec)
	if err := CheckName("cluster", name); err != nil {
		return change, err
	}
	if err := checkSpec(spec); err != nil {
		return change, err
	}
	if existed, err := a.equalCluster(name, spec); existed || err != nil {
		return change, err
	}
	if err := storable(spec.Guests, r.MaxOps); err != nil {
		return change, err
	}
	image, platforms, err := a.admissible(spec)
	if err != nil {
		return change, err
	}
	cluster, guests, err := a.newCluster(name, r.UID, spec, image.Digest)
	if err != nil {
		return change, err
	}
	cluster.Platforms = platforms
	change.write(Create, cluster)
	for _, g := range guests {
		change.write(Create, g)
	}
	if err := a.takeVolume(&change, cluster); err != nil {
		return change, err
	}
	a.audited(&change, "cluster", name, "created: %s of %s and %s, image %s", english.Plural(int(spec.Guests), "guest", ""),
		english.Plural(int(spec.Shape.Vcpus), "vCPU", ""), humanize.IBytes(spec.Shape.MemoryBytes), spec.Image)
	return change, nil
}

// checkSpec refuses a cluster's specification that is out of bounds, and completes it, so that equal specifications compare
// equal.
func checkSpec(spec *v1.ClusterSpec) error {
	shape := spec.GetShape()
	switch {
	case spec.GetGuests() < 1 || spec.Guests > maxGuests:
		return invalid("%d guests: a cluster has 1 to %d", spec.GetGuests(), maxGuests)
	case shape.GetVcpus() < 1 || shape.Vcpus > maxVCPUs:
		return invalid("%d vCPUs: a guest has 1 to %d", shape.GetVcpus(), maxVCPUs)
	case shape.MemoryBytes < minMemoryBytes || shape.MemoryBytes > maxMemoryBytes:
		return invalid("%s of memory: a guest has %s to %s", humanize.IBytes(shape.MemoryBytes), humanize.IBytes(minMemoryBytes), humanize.IBytes(maxMemoryBytes))
	case shape.MemoryBytes%(1<<20) != 0:
		return invalid("%s bytes of memory are no whole number of MiB; give one, say %d MiB", humanize.Comma(int64(shape.MemoryBytes)), shape.MemoryBytes>>20)
	case spec.Image == "":
		return invalid("the cluster has no image")
	case spec.Abstract && (shape.Vcpus != 1 || spec.Spread != v1.Spread_SPREAD_UNSPECIFIED):
		return invalid("an abstract processor has one vCPU, and no other spread than by the hosts' speeds")
	case v1.Spread_name[int32(spec.Spread)] == "":
		return invalid("unknown spread %d", spec.Spread)
	case v1.OnHostLoss_name[int32(spec.OnHostLoss)] == "":
		return invalid("unknown on-host-loss %d", spec.OnHostLoss)
	case spec.LeaseMs != 0 && (spec.LeaseMs < minLeaseMs || spec.LeaseMs > maxLeaseMs):
		return invalid("a lease of %s is out of range: give %s to %s", time.Duration(min(spec.LeaseMs, 2*maxLeaseMs))*time.Millisecond, minLeaseMs*time.Millisecond, maxLeaseMs*time.Millisecond)
	case spec.Cpu != "" && !cpuRule.MatchString(spec.Cpu):
		return invalid("%q cannot be a CPU: use baseline, host, or a named model such as EPYC-Rome", spec.Cpu)
	}
	if spec.Cpu == "baseline" {
		spec.Cpu = compatibility.Baseline
	}
	if spec.OnHostLoss == v1.OnHostLoss_ON_HOST_LOSS_RESTART {
		spec.OnHostLoss = v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED
	}
	if err := checkMounts(spec); err != nil {
		return err
	}
	slices.Sort(spec.Sites)
	spec.Sites = slices.Compact(spec.Sites)
	return nil
}

// equalCluster tells whether an equal cluster exists. It refuses a cluster whose name another cluster has.
func (a *Admission) equalCluster(name string, spec *v1.ClusterSpec) (bool, error) {
	have := a.Clusters[name]
	switch {
	case have == nil:
		return false, nil
	case !a.Caller.Owns(have.Meta):
		return false, refuse(Exists, "the name %s is taken", name)
	case have.Meta.Deleting != nil:
		return false, precondition("cluster %s is being deleted; create it again when it is gone", name)
	}
	if d := specDifferences(have.Spec, spec); d != "" {
		return false, refuse(Exists, "there is a cluster %s, and it differs: %s", name, d)
	}
	return true, nil
}

// admissible checks that a cluster can be made now: image, sites, the owner's quota, room. It returns the image, and the
// platforms in which the guests are to be started.
func (a *Admission) admissible(spec *v1.ClusterSpec) (*v1.Image, []*v1.Platform, error) {
	image, err := a.image(spec.Image)
	if err != nil {
		return nil, nil, err
	}
	known := sites(a.Objects)
	for _, site := range spec.Sites {
		if !known[site] {
			return nil, nil, Missing("site", site, known)
		}
	}
	if err := a.allowedMounts(spec); err != nil {
		return nil, nil, err
	}
	if err := checkQuota(a.Objects, a.Caller.Name, spec); err != nil {
		return nil, nil, err
	}
	platforms, err := Feasible(a.Objects, a.Reports, spec, image.Digest, a.Now, a.Began)
	if err != nil {
		return nil, nil, refuse(Exhausted, "%v", err)
	}
	return image, platforms, nil
}

// image returns the image that the caller calls NAME, or NAME@DIGEST. With a digest, only that content matches: the owner
// may have given the name to other content meanwhile. A part of a digest does not suffice, because an owner can make two
// images that agree in it.
func (a *Admission) image(text string) (*v1.Image, error) {
	name, digest, exactly := strings.Cut(text, "@")
	images := a.Caller.UsableImages(a.Images)
	image := images[name]
	if image == nil {
		return nil, Missing("image", name, images)
	}
	if exactly && strings.TrimPrefix(digest, "sha256:") != strings.TrimPrefix(image.Digest, "sha256:") {
		return nil, precondition("image %s is %s now, not %s (give the whole digest, as `watari image show %[1]s` prints it)", name, image.Digest, digest)
	}
	return image, nil
}

// checkQuota checks that the owner's clusters and this one together are within the quota. Stopped guests, and guests of
// clusters that are being deleted, count too.
func checkQuota(s *Objects, owner string, spec *v1.ClusterSpec) error {
	user := s.Users[owner]
	if user == nil { // removed since the call began
		return refuse(Unauthenticated, "user %s was removed", owner)
	}
	quota := user.Quota
	if quota.GetVcpus() == 0 && quota.GetMemoryBytes() == 0 {
		return nil
	}
	vcpus := uint64(spec.Guests) * uint64(spec.Shape.Vcpus)
	memory := uint64(spec.Guests) * spec.Shape.MemoryBytes
	usedVCPUs, usedMemory := used(s, owner)
	if limit := uint64(quota.GetVcpus()); limit > 0 && usedVCPUs+vcpus > limit {
		return overQuota(owner, english.Plural(int(limit), "vCPU", ""), fmt.Sprint(usedVCPUs), fmt.Sprint(vcpus), "--vcpus")
	}
	if limit := quota.GetMemoryBytes(); limit > 0 && usedMemory+memory > limit {
		return overQuota(owner, humanize.IBytes(limit)+" of memory", humanize.IBytes(usedMemory), humanize.IBytes(memory), "--memory")
	}
	return nil
}

// used returns how much of a user's quota the user's guests take.
func used(s *Objects, owner string) (vcpus, memoryBytes uint64) {
	for _, g := range s.Guests {
		if g.Meta.Owner == owner {
			vcpus += uint64(g.Shape.GetVcpus())
			memoryBytes += g.Shape.GetMemoryBytes()
		}
	}
	return vcpus, memoryBytes
}

// overQuota names the quota, what is used, what is asked for and who can help.
func overQuota(owner, limit, used, more, flag string) error {
	return refuse(Exhausted, "the quota of user %s is %s, with %s in use and %s more asked for; ask for less, "+
		"delete a cluster, or have an administrator raise it (`watari quota set %s %s ...`)", owner, limit, used, more, owner, flag)
}

// newCluster makes the objects of a cluster.
func (a *Admission) newCluster(name, uid string, spec *v1.ClusterSpec, digest string) (*v1.Cluster, []*v1.Guest, error) {
	prefix, err := freePrefix(a.Pool, a.Objects, int(spec.Guests))
	if err != nil {
		return nil, nil, err
	}
	owner := a.Caller
	cluster := &v1.Cluster{
		Meta: &v1.Meta{Name: name, Uid: uid, Owner: owner.Name, OwnerUid: owner.UID}, Spec: spec, ImageDigest: digest, Prefix: prefix.String(),
		Mtu: clusterMTU(a.Objects),
	}
	guests := make([]*v1.Guest, spec.Guests)
	for i := range guests {
		guests[i] = &v1.Guest{
			Meta: &v1.Meta{Name: fmt.Sprintf("%s-%d", name, i), Uid: GuestUID(uid, uint32(i)), Owner: owner.Name, OwnerUid: owner.UID}, Cluster: name, Index: uint32(i),
			Shape: proto.CloneOf(spec.Shape), ImageDigest: digest, Address: guestAddress(prefix, i).String(), NoFork: spec.NoFork, LeaseMs: spec.LeaseMs,
		}
	}
	return cluster, guests, nil
}

// clusterMTU returns the MTU that fits between any two of the hosts.
func clusterMTU(s *Objects) uint32 {
	mtu := uint32(overlayMTU)
	for _, h := range s.Hosts {
		if lan := h.GetInfo().GetMtu(); lan > 0 {
			mtu = min(mtu, max(lan, leastMTU)-overlayOverhead)
		}
	}
	return mtu
}

// DeleteCluster marks a cluster for deletion.
func (a *Admission) DeleteCluster(name string) (change Change, err error) {
	c, err := Find(a.Caller, "cluster", name, a.Clusters)
	if err != nil || c.Meta.Deleting != nil {
		return change, err
	}
	c = proto.CloneOf(c)
	c.Meta.Deleting = timestamppb.New(a.Now)
	change.write(Update, c)
	a.audited(&change, "cluster", name, "deletion asked for")
	return change, nil
}

// specDifferences describes how two specifications differ, for people.
func specDifferences(have, want *v1.ClusterSpec) string {
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
	add(have.GetAbstract() != want.GetAbstract(), "its guests are placed %s, not %s", placedName(have.GetAbstract()), placedName(want.GetAbstract()))
	add(have.GetNoFork() != want.GetNoFork(), "its guests are started %s, not %s", startName(have.GetNoFork()), startName(want.GetNoFork()))
	add(have.GetLeaseMs() != want.GetLeaseMs(), "its lease is %s, not %s", leaseName(have), leaseName(want))
	add(have.GetOnHostLoss() != want.GetOnHostLoss(), "on the loss of a host it is to %s, not %s", lossName(have.GetOnHostLoss()), lossName(want.GetOnHostLoss()))
	add(have.GetVolume() != want.GetVolume(), "its home lies on %s, not on %s", volumeName(have), volumeName(want))
	add(!slices.EqualFunc(have.GetMounts(), want.GetMounts(), func(a, b *v1.Mount) bool { return proto.Equal(a, b) }), "it mounts %s, not %s", listOr(mountNames(have), "nothing"), listOr(mountNames(want), "nothing"))
	add(have.GetCpu() != want.GetCpu(), "its guests' CPU is %s, not %s", cmp.Or(have.GetCpu(), "baseline"), cmp.Or(want.GetCpu(), "baseline"))
	return strings.Join(d, "; ")
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

func volumeName(spec *v1.ClusterSpec) string {
	if spec.GetVolume() == "" {
		return "the first guest's memory"
	}
	return "volume " + spec.GetVolume()
}

func mountNames(spec *v1.ClusterSpec) (names []string) {
	for _, m := range spec.GetMounts() {
		names = append(names, mounts.Text(m))
	}
	return names
}

func leaseName(spec *v1.ClusterSpec) string {
	if spec.GetLeaseMs() == 0 {
		return "none"
	}
	return (time.Duration(spec.LeaseMs) * time.Millisecond).String()
}

// lossName describes what a cluster does when it loses a guest, for people.
func lossName(l v1.OnHostLoss) string {
	if l == v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED {
		l = v1.OnHostLoss_ON_HOST_LOSS_RESTART
	}
	return strings.ToLower(strings.TrimPrefix(l.String(), "ON_HOST_LOSS_"))
}

func placedName(abstract bool) string {
	if abstract {
		return "by the hosts' speeds"
	}
	return "one by one"
}

func startName(noFork bool) string {
	if noFork {
		return "by booting"
	}
	return "by forking"
}
