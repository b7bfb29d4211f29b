package core

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

func TestRefusalsAreForPeopleToRead(t *testing.T) {
	spec := func(memory uint64) *v1.ClusterSpec {
		return &v1.ClusterSpec{Guests: 1, Image: "mpi", Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: memory}}
	}
	users := map[string]*v1.User{
		"ann": {Meta: &v1.Meta{Name: "ann"}, Quota: &v1.Quota{Vcpus: 1}},
		"bob": {Meta: &v1.Meta{Name: "bob"}, Quota: &v1.Quota{MemoryBytes: 1 << 30}},
	}
	guests := map[string]*v1.Guest{
		"lu-0": {Meta: &v1.Meta{Name: "lu-0", Owner: "ann"}, Shape: spec(512 << 20).Shape},
		"cg-0": {Meta: &v1.Meta{Name: "cg-0", Owner: "bob"}, Shape: spec(768 << 20).Shape},
	}
	s := &Objects{Users: users, Guests: guests}
	for want, err := range map[string]error{
		"24 MiB of memory: a guest has 64 MiB to 16 TiB":                                             checkSpec(spec(24 << 20)),
		"67,108,865 bytes of memory are no whole number of MiB; give one, say 64 MiB":                checkSpec(spec(64<<20 + 1)),
		"the quota of user ann is 1 vCPU, with 1 in use and 1 more asked for":                        checkQuota(s, "ann", spec(64<<20)),
		"the quota of user bob is 1.0 GiB of memory, with 768 MiB in use and 512 MiB more asked for": checkQuota(s, "bob", spec(512<<20)),
		"or have an administrator raise it (`watari quota set bob --memory ...`)":                    checkQuota(s, "bob", spec(512<<20)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	larger := spec(128 << 20)
	larger.Guests, larger.Shape.Vcpus, larger.Cpu = 3, 2, "host"
	want := "it has 1 guest, not 3; its guests have 1 vCPU, not 2; its guests have 64 MiB of memory, not 128 MiB; its guests' CPU is baseline, not host"
	if got := specDifferences(spec(64<<20), larger); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestACPUIsAPolicyOrAName(t *testing.T) {
	for cpu, kept := range map[string]string{"": "", "baseline": "", "host": "host", "EPYC-Rome": "EPYC-Rome", "Skylake-Server-v4": "Skylake-Server-v4"} {
		spec := &v1.ClusterSpec{Guests: 1, Image: "mpi", Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 64 << 20}, Cpu: cpu}
		if err := checkSpec(spec); err != nil || spec.Cpu != kept {
			t.Errorf("%q: %q, %v", cpu, spec.Cpu, err)
		}
		spec.Cpu = cpu + "<"
		if err := checkSpec(spec); err == nil || !strings.Contains(err.Error(), "use baseline, host, or a named model") {
			t.Errorf("%q: %v", spec.Cpu, err)
		}
	}
}

func TestNobodyWhoWasRemovedGetsACluster(t *testing.T) {
	spec := &v1.ClusterSpec{Guests: 1, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 64 << 20}}
	if err := checkQuota(&Objects{}, "ann", spec); KindOf(err) != Unauthenticated || !strings.Contains(err.Error(), "user ann was removed") {
		t.Error(err)
	}
}

// admissionTest returns an admission of user ann, to whom two hosts are open.
func admissionTest() *Admission {
	s, reports, now := NoObjects(), Captured{}, time.Unix(1000, 0)
	for _, name := range []string{"a1", "b1"} {
		info := &v1.HostInfo{BootId: name + "-boot", Site: name[:1], Cores: 1000, MemoryBytes: 1 << 40}
		s.Hosts[name] = &v1.Host{Meta: &v1.Meta{Name: name, Uid: name + "-uid"}, Info: info}
		reports[name] = Seen{Report: &v1.HostObserved{Info: info}, Since: now, Connected: true}
	}
	s.Images["mpi"] = &v1.Image{Meta: &v1.Meta{Name: "mpi"}, Digest: "digest"}
	s.Users["ann"] = &v1.User{Meta: &v1.Meta{Name: "ann", Uid: "u1"}}
	s.Users["bob"] = &v1.User{Meta: &v1.Meta{Name: "bob", Uid: "u2"}}
	return &Admission{Objects: s, Caller: Caller{Name: "ann", UID: "u1"}, Reports: reports, Now: now, Began: now.Add(-time.Hour),
		Pool: netip.MustParsePrefix("10.77.0.0/16")}
}

func shape(vcpus uint32, mib uint64) *v1.GuestShape {
	return &v1.GuestShape{Vcpus: vcpus, MemoryBytes: mib << 20}
}

// asks asks for a cluster, and makes it if that is granted.
func (a *Admission) asks(name string, guests uint32, s *v1.GuestShape) (Change, error) {
	change, err := a.CreateCluster(ClusterRequest{Name: name, UID: name + "-uid", Spec: &v1.ClusterSpec{Guests: guests, Image: "mpi", Shape: s}})
	if err == nil {
		a.Objects = a.Apply(change)
	}
	return change, err
}

// refused checks that a request was refused for a reason.
func refused(t *testing.T, c Change, err error, kind RefusalKind, want string) {
	t.Helper()
	if KindOf(err) != kind || !strings.Contains(err.Error(), want) || len(c.Ops)+len(c.Events) > 0 {
		t.Errorf("got %v (kind %d), %v\nwant %s (kind %d)", err, KindOf(err), c, want, kind)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "md", "m-d", "a1", "a--1", strings.Repeat("a", 40)} {
		if err := CheckName("cluster", name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"A", "1a", "-a", "a-", "a.b", "a_b", "a b", "a/b", "a\n", "\u00e4", strings.Repeat("a", 41)} {
		if err := CheckName("cluster", name); KindOf(err) != Invalid || !strings.Contains(err.Error(), "cannot be a cluster's name") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckName("host", ""); err == nil || err.Error() != "the host has no name" {
		t.Error(err)
	}
}

func TestWhatIsMissingIsTold(t *testing.T) {
	there := map[string]bool{}
	for i := range 21 {
		there[fmt.Sprintf("a%02d", i)] = true
	}
	if err := Missing("site", "x", there); !strings.HasSuffix(err.Error(), "a18, a19, ...") || KindOf(err) != NotFound {
		t.Error(err)
	}
	if err := Missing("site", "x", map[string]bool{}); err.Error() != `there is no site "x"; there is none at all` {
		t.Error(err)
	}
}

func TestBoundsOfClusters(t *testing.T) {
	for want, change := range map[string]func(*v1.ClusterSpec){
		"0 guests: a cluster has 1 to 1000":    func(s *v1.ClusterSpec) { s.Guests = 0 },
		"1001 guests: a cluster has 1 to 1000": func(s *v1.ClusterSpec) { s.Guests = 1001 },
		"0 vCPUs: a guest has 1 to 512":        func(s *v1.ClusterSpec) { s.Shape.Vcpus = 0 },
		"513 vCPUs: a guest has 1 to 512":      func(s *v1.ClusterSpec) { s.Shape.Vcpus = 513 },
		"17 TiB of memory":                     func(s *v1.ClusterSpec) { s.Shape.MemoryBytes = 17 << 40 },
		"the cluster has no image":             func(s *v1.ClusterSpec) { s.Image = "" },
		"unknown spread 9":                     func(s *v1.ClusterSpec) { s.Spread = 9 },
	} {
		spec := &v1.ClusterSpec{Guests: 1, Image: "mpi", Shape: shape(1, 512)}
		change(spec)
		c, err := admissionTest().CreateCluster(ClusterRequest{Name: "md", Spec: spec})
		refused(t, c, err, Invalid, want)
	}
	c, err := admissionTest().CreateCluster(ClusterRequest{Name: "md"})
	refused(t, c, err, Invalid, "0 guests")
}

func TestAClusterOfAThousandGuests(t *testing.T) {
	a := admissionTest()
	request := ClusterRequest{Name: "md", UID: "uid", Spec: &v1.ClusterSpec{Guests: maxGuests, Image: "mpi", Shape: shape(1, 64), Sites: []string{"b", "a", "b"}, Cpu: "baseline"}}
	asked := proto.CloneOf(request.Spec)
	request.MaxOps = maxGuests + besidesGuests - 1
	c, err := a.CreateCluster(request)
	refused(t, c, err, Precondition, "1000 guests: the manager's etcd lets a cluster have 999; start etcd with --max-txn-ops=2048 for more")
	request.MaxOps = maxGuests + besidesGuests
	c, err = a.CreateCluster(request)
	if err != nil || len(c.Ops) != maxGuests+1 || len(c.Events) != 1 {
		t.Fatalf("%d operations, %d events, %v", len(c.Ops), len(c.Events), err)
	}
	if !proto.Equal(request.Spec, asked) {
		t.Error("the request is changed")
	}
	if e := c.Events[0]; e.Message != "created: 1,000 guests of 1 vCPU and 64 MiB, image mpi" || e.Actor != "ann" {
		t.Error(e)
	}
	cluster := c.Ops[0].Object.(*v1.Cluster)
	prefix := netip.MustParsePrefix(cluster.Prefix)
	if prefix.String() != "10.77.0.0/22" || cluster.Meta.OwnerUid != "u1" || len(cluster.Spec.Sites) != 2 {
		t.Error(cluster)
	}
	names, addresses, uids := map[string]bool{}, map[netip.Addr]bool{}, map[string]bool{}
	for i, op := range c.Ops[1:] {
		g := op.Object.(*v1.Guest)
		address := netip.MustParseAddr(g.Address)
		if g.Index != uint32(i) || !prefix.Contains(address) || g.Meta.OwnerUid != "u1" {
			t.Error(g)
		}
		names[g.Meta.Name], addresses[address], uids[g.Meta.Uid] = true, true, true
	}
	if len(names) != maxGuests || len(addresses) != maxGuests || len(uids) != maxGuests || addresses[prefix.Addr()] {
		t.Errorf("%d names, %d addresses, %d uids", len(names), len(addresses), len(uids))
	}
	a.Objects = a.Apply(c)
	if c, err := a.CreateCluster(request); err != nil || len(c.Ops)+len(c.Events) != 0 {
		t.Errorf("asked for again: %v, %v", c, err)
	}
}

func TestAnImageIsNamedWithItsDigestForExactlyThatContent(t *testing.T) {
	a := admissionTest()
	digest := "0123456789abcdef"
	a.Images["mpi"].Digest = "sha256:" + digest
	for text, want := range map[string]string{"mpi": "", "mpi@" + digest: "", "mpi@sha256:" + digest: "",
		"mpi@" + digest[:12]: "give the whole digest",
		"mpi@":               "give the whole digest",
		"mpi@fedcba987654":   "image mpi is sha256:0123456789abcdef now, not fedcba987654",
		"lu@" + digest:       `there is no image "lu"`,
	} {
		image, err := a.image(text)
		if want == "" && (err != nil || image != a.Images["mpi"]) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v", text, image, err)
		}
	}
}

func TestAQuotaCanBeUsedUp(t *testing.T) {
	a := admissionTest()
	a.Users["ann"].Quota = &v1.Quota{Vcpus: 8, MemoryBytes: 4 << 30}
	for name, guests := range map[string]uint32{"cg": 2, "lu": 1} {
		if _, err := a.asks(name, guests, shape(2, 1024)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := a.asks("ft", 2, shape(1, 513))
	refused(t, c, err, Exhausted, "the quota of user ann is 4.0 GiB of memory, with 3.0 GiB in use and 1.0 GiB more asked for")
	c, err = a.asks("ft", 1, shape(3, 64))
	refused(t, c, err, Exhausted, "the quota of user ann is 8 vCPUs, with 6 in use and 3 more asked for")
	a.Caller = Caller{Name: "bob", UID: "u2", Admin: true} // bob has no quota
	if _, err := a.asks("big", 10, shape(2, 2048)); err != nil {
		t.Error(err)
	}
	a.Caller = Caller{Name: "ann", UID: "u1"}
	if _, err := a.asks("ft", 2, shape(1, 512)); err != nil {
		t.Errorf("exactly what is left: %v", err)
	}
	c, err = a.asks("one", 1, shape(1, 64))
	refused(t, c, err, Exhausted, "8 in use and 1 more asked for")
	a.Clusters["ft"].Meta.Deleting = timestamppb.New(a.Now)
	a.Guests["lu-0"].Stopped = true
	c, err = a.asks("one", 1, shape(1, 64))
	refused(t, c, err, Exhausted, "8 in use") // until the guests are gone
	delete(a.Guests, "ft-1")
	if _, err := a.asks("one", 1, shape(1, 64)); err != nil {
		t.Error(err)
	}
	a.Users["ann"].Quota = &v1.Quota{Vcpus: 1} // less than is in use
	c, err = a.asks("two", 1, shape(1, 64))
	refused(t, c, err, Exhausted, "the quota of user ann is 1 vCPU, with 8 in use and 1 more asked for")
}

func TestThePoolOfPrefixesIsUsedUp(t *testing.T) {
	a := admissionTest()
	a.Pool = netip.MustParsePrefix("10.77.0.0/21") // eight times /24
	for _, c := range []struct {
		name   string
		guests uint32
		want   string // empty: none is free
	}{
		{"small", 1, "10.77.0.0/24"}, {"large", 600, "10.77.4.0/22"}, {"middle", 300, "10.77.2.0/23"}, {"other", 300, ""}, {"last", 245, "10.77.1.0/24"}, {"none", 1, ""},
	} {
		change, err := a.asks(c.name, c.guests, shape(1, 64))
		if c.want == "" {
			refused(t, change, err, Exhausted, "of 10.77.0.0/21 is free for")
			continue
		}
		if err != nil || a.Clusters[c.name].GetPrefix() != c.want {
			t.Errorf("%s: %v, %v", c.name, a.Clusters[c.name].GetPrefix(), err)
		}
	}
	a.Clusters["large"].Meta.Deleting = timestamppb.New(a.Now)
	change, err := a.asks("none", 1, shape(1, 64))
	refused(t, change, err, Exhausted, "no /24 of 10.77.0.0/21 is free for 1 guests")
	delete(a.Clusters, "large")
	if _, err := a.asks("none", 1, shape(1, 64)); err != nil || a.Clusters["none"].Prefix != "10.77.4.0/24" {
		t.Errorf("%v", err)
	}
}

func TestAClusterThatCannotBeMade(t *testing.T) {
	a := admissionTest()
	if _, err := a.asks("md", 1, shape(1, 512)); err != nil {
		t.Fatal(err)
	}
	c, err := a.asks("md", 2, shape(1, 512))
	refused(t, c, err, Exists, "there is a cluster md, and it differs: it has 1 guest, not 2")
	c, err = a.asks("lu", 5, shape(1, 1<<19))
	refused(t, c, err, Exhausted, "a1")
	c, err = a.CreateCluster(ClusterRequest{Name: "lu", Spec: &v1.ClusterSpec{Guests: 1, Image: "ubuntu", Shape: shape(1, 64)}})
	refused(t, c, err, NotFound, `there is no image "ubuntu"; there are: mpi`)
	c, err = a.CreateCluster(ClusterRequest{Name: "lu", Spec: &v1.ClusterSpec{Guests: 1, Image: "mpi", Shape: shape(1, 64), Sites: []string{"c"}}})
	refused(t, c, err, NotFound, `there is no site "c"; there are: a, b`)
	a.Caller = Caller{Name: "bob", UID: "u2"}
	c, err = a.asks("md", 1, shape(1, 512))
	refused(t, c, err, Exists, "the name md is taken")
	c, err = a.DeleteCluster("md")
	refused(t, c, err, NotFound, `there is no cluster "md"; there is none at all`)
	a.Caller = Caller{Name: "ann", UID: "u1"}
	if c, err = a.DeleteCluster("md"); err != nil || a.Clusters["md"].Meta.Deleting != nil {
		t.Fatal(err)
	}
	a.Objects = a.Apply(c)
	if c, err := a.DeleteCluster("md"); err != nil || len(c.Ops) != 0 {
		t.Errorf("deleted again: %v, %v", c, err)
	}
	c, err = a.asks("md", 1, shape(1, 512))
	refused(t, c, err, Precondition, "cluster md is being deleted; create it again when it is gone")
	a.Caller = Caller{Name: "ann", UID: "u0"} // an earlier user of the name
	c, err = a.DeleteCluster("md")
	refused(t, c, err, NotFound, `there is no cluster "md"`)
}

func TestAHostsTinyMTUIsNotBelieved(t *testing.T) {
	for reported, want := range map[uint32]uint32{0: 1420, 9000: 1420, 1500: 1420, 1400: 1320, 1280: 1200, 576: 1200, 81: 1200, 1: 1200} {
		s := &Objects{Hosts: map[string]*v1.Host{
			"a1": {Info: &v1.HostInfo{Mtu: 1500}},
			"x1": {Info: &v1.HostInfo{Mtu: reported}},
		}}
		if got := clusterMTU(s); got != want {
			t.Errorf("beside a host that reports an MTU of %d, guests have %d, not %d", reported, got, want)
		}
	}
}
