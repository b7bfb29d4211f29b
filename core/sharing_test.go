package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/sharing"
)

// shareTest has hosts that want one image. A test writes their reports.
type shareTest struct {
	t     *testing.T
	core  *Core
	world *World
	hosts map[string]*shareHost
	// wanted are the hosts' orders.
	wanted map[string]*v1.HostWanted
}

type shareHost struct {
	report    *v1.HostObserved
	connected bool
}

const root = "sha256:root"

// newShareTest puts all hosts into trust group admin. They want an image and have its kernel and initrd.
func newShareTest(t *testing.T, names ...string) *shareTest {
	s := &shareTest{t: t, core: New(Config{}), world: &World{Objects: NoObjects(), Now: time.Unix(1000, 0)}, hosts: map[string]*shareHost{}}
	for _, name := range names {
		info := &v1.HostInfo{BootId: name + "-boot-1", Site: name[:1], LanAddress: "198.18.0.1", TunnelPort: 7071}
		s.hosts[name] = &shareHost{&v1.HostObserved{Info: info, Sharing: true}, true}
		s.blob(name, "sha256:kernel", true, 0)
		s.blob(name, "sha256:initrd", true, 0)
		s.world.Hosts[name] = &v1.Host{Meta: &v1.Meta{Name: name, Uid: "uid-of-" + name}, TrustGroup: "admin", Info: info,
			Generation: 3} // hosts compare uids alone
	}
	return s
}

// blob makes a host report a blob. The report replaces the host's earlier report of the blob.
func (s *shareTest) blob(host, digest string, whole bool, have uint64) {
	report := s.hosts[host].report
	report.Blobs = slices.DeleteFunc(report.Blobs, func(b *v1.BlobObserved) bool { return b.Digest == digest })
	report.Blobs = append(report.Blobs, &v1.BlobObserved{Digest: digest, Whole: whole, HaveBytes: have})
}

func (s *shareTest) template(host string, t *v1.TemplateObserved) {
	t.Key = "key"
	s.hosts[host].report.Templates = []*v1.TemplateObserved{t}
}

// pass makes a decision, and sends the orders.
func (s *shareTest) pass() {
	image := &v1.Image{Digest: "sha256:image", Kernel: &v1.Blob{Digest: "sha256:kernel"}, Initrd: &v1.Blob{Digest: "sha256:initrd"}, Root: &v1.Blob{Digest: root}}
	s.wanted, s.world.Reports = map[string]*v1.HostWanted{}, map[string]Seen{}
	s.core.orders.base = map[string]*v1.HostWanted{}
	for name, h := range s.hosts {
		s.world.Reports[name] = Seen{Report: h.report, Connected: h.connected}
		if h.connected {
			s.core.orders.base[name] = &v1.HostWanted{Images: []*v1.Image{image}, Network: &v1.NetworkWanted{}}
		}
	}
	p := &pass{Core: s.core, World: s.world, orders: map[string]*v1.HostWanted{}}
	p.share()
	for name, base := range s.core.orders.base {
		p.send(name, base)
		s.wanted[name] = s.core.orders.sent[name].wanted
	}
}

// orders returns all hosts' orders about blobs and templates.
func (s *shareTest) orders() string {
	var lines []string
	for name, w := range s.wanted {
		for _, b := range w.Blobs {
			line := name + " " + strings.TrimPrefix(b.Digest, "sha256:")
			if b.FromManager {
				line += " from the manager"
			}
			lines = append(lines, line+peersText(" from", b.Sources)+peersText(" to", b.Readers))
		}
		for _, t := range w.Templates {
			lines = append(lines, fmt.Sprintf("%s template %s", name, strings.ToLower(strings.TrimPrefix(t.Order.String(), "TEMPLATE_ORDER_"))))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

func peersText(before string, peers []*v1.BlobPeer) string {
	for _, p := range peers {
		before += " " + p.Name
		if p.Uid != "uid-of-"+p.Name || p.Address != "198.18.0.1:7071" {
			before += "?"
		}
	}
	if len(peers) == 0 {
		return ""
	}
	return before
}

func (s *shareTest) expect(what, want string) {
	s.t.Helper()
	s.pass()
	if got := s.orders(); got != want {
		s.t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
	}
}

func TestOneHostOfEachSiteFetchesFromTheManager(t *testing.T) {
	s := newShareTest(t, "a1", "a2", "b1")
	s.expect("at the start", "a1 root from the manager to a2; a2 root from a1; b1 root from the manager")
	s.blob("a1", root, true, 0)
	s.expect("a1 has it", "a1 root to a2; a2 root from a1; b1 root from the manager")
	s.blob("a2", root, true, 0)
	s.blob("b1", root, true, 0)
	s.expect("all have it", "")
	for name, w := range s.wanted {
		if !w.Sharing || w.TrustGroup != "admin" {
			t.Errorf("%s is not told that images are shared: %v", name, w)
		}
	}
}

func TestAHostThatWasCutOffReadsNoImagesOrTemplates(t *testing.T) {
	s := newShareTest(t, "a1", "a2", "a3")
	s.blob("a1", root, true, 0)
	s.template("a1", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_HELD, Blob: &v1.Blob{Digest: "sha256:t", Size: 5}, MakingMs: 4000})
	s.template("a2", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_WANTED})
	s.expect("before", "a1 root to a2 a3; a1 t to a2; a2 root from a1; a2 t from a1; a2 template fetch; a3 root from a1")
	s.world.Hosts["a2"].Quarantine = &v1.Quarantine{CutOff: timestamppb.New(s.world.Now)}
	s.expect("a2 was cut off, and is still connected", "a1 root to a3; a3 root from a1")
}

func TestTheChosenHostIsRelievedWhenItStallsOrDies(t *testing.T) {
	s := newShareTest(t, "a1", "a2", "a3")
	s.pass()
	s.blob("a1", root, false, 100)
	for range 5 { // the transfer goes on, slowly
		s.world.Now = s.world.Now.Add(sharing.StallTime - time.Second)
		s.hosts["a1"].report.Blobs[2].HaveBytes++
		s.expect("a1 goes on", "a1 root from the manager to a2 a3; a2 root from a1; a3 root from a1")
	}
	s.world.Now = s.world.Now.Add(sharing.StallTime)
	s.expect("a1 stalls", "a1 root from a2; a2 root from the manager to a1 a3; a3 root from a2")
	s.world.Now = s.world.Now.Add(sharing.StallTime - time.Second)
	s.expect("a2 has its time", "a1 root from a2; a2 root from the manager to a1 a3; a3 root from a2")
	s.hosts["a2"].connected = false
	s.expect("a2 dies", "a1 root from the manager to a3; a3 root from a1")
}

func TestAManagerThatIsStartedAnewGoesByWhatHostsReport(t *testing.T) {
	s := newShareTest(t, "a1", "a2", "a3")
	s.hosts["a2"].report.Blobs = append(s.hosts["a2"].report.Blobs, &v1.BlobObserved{Digest: root, HaveBytes: 5, FromOutside: true})
	s.expect("a2 was chosen by the last manager", "a1 root from a2; a2 root from the manager to a1 a3; a3 root from a2")
}

func TestAnAgentThatCannotShareIsLeftAlone(t *testing.T) {
	s := newShareTest(t, "a1", "a2")
	s.hosts["a1"].report.Sharing = false
	s.blob("a1", root, true, 0)
	s.expect("a2 fetches alone", "a2 root from the manager")
	if s.wanted["a1"].Sharing {
		t.Error("a1 is told to share")
	}
}

func TestATemplateIsMadeOnceAndStaysInItsTrustGroup(t *testing.T) {
	s := newShareTest(t, "a1", "a2", "a3", "a4")
	s.world.Hosts["a4"].TrustGroup = "others"
	for _, name := range []string{"a1", "a2", "a3", "a4"} {
		s.blob(name, root, true, 0)
		s.template(name, &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_WANTED})
	}
	s.template("a1", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_FAILED})
	s.expect("a1 failed", "a2 template make; a3 template wait; a4 template make")
	s.template("a1", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_WANTED})
	s.expect("a2 was told first", "a1 template wait; a2 template make; a3 template wait; a4 template make")
	s.template("a2", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_HELD, Blob: &v1.Blob{Digest: "sha256:t2", Size: 5}, MakingMs: 4000})
	s.template("a4", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_HELD, Blob: &v1.Blob{Digest: "sha256:t4", Size: 5}, MakingMs: 4000})
	s.expect("two are made", "a1 t2 from a2; a1 template fetch; a2 t2 to a1 a3; a3 t2 from a2; a3 template fetch")
	s.template("a1", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_HELD, Blob: &v1.Blob{Digest: "sha256:t2", Size: 5}, TrustGroup: "admin"})
	s.world.Hosts["a1"].TrustGroup = "others"
	s.template("a4", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_WANTED})
	s.template("a3", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_WANTED})
	s.expect("a1 changed its group", "a2 t2 to a3; a3 t2 from a2; a3 template fetch; a4 template make")
}

func TestATemplateIsFetchedFromAnotherSiteByOneHost(t *testing.T) {
	s := newShareTest(t, "a1", "b1", "b2")
	for _, name := range []string{"a1", "b1", "b2"} {
		s.blob(name, root, true, 0)
		s.template(name, &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_WANTED})
		s.hosts[name].report.FetchBytesPerSecond = 25 << 20
	}
	s.template("a1", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_HELD, Blob: &v1.Blob{Digest: "sha256:t", Size: 25 << 20}, MakingMs: 4000})
	s.expect("fetching takes 1 s, making it 4", "a1 t to b1; b1 t from a1 to b2; b1 template fetch; b2 t from b1; b2 template fetch")
	s.template("a1", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_HELD, Blob: &v1.Blob{Digest: "sha256:t", Size: 25 << 20}, MakingMs: 900})
	s.expect("making it takes less", "b1 template make; b2 template wait")
}

// One host of a site got the image from outside and knows the rate of the line. Another host may be the first to ask for a
// template.
func TestASitesLineIsKnownToAllOfItsHosts(t *testing.T) {
	s := newShareTest(t, "a1", "b1", "b2")
	for _, name := range []string{"a1", "b1", "b2"} {
		s.blob(name, root, true, 0)
	}
	s.hosts["b1"].report.FetchBytesPerSecond = 25 << 20
	s.template("a1", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_HELD, Blob: &v1.Blob{Digest: "sha256:t", Size: 25 << 20}, MakingMs: 4000})
	s.template("b2", &v1.TemplateObserved{State: v1.TemplateState_TEMPLATE_STATE_WANTED})
	s.expect("b2 asks first", "a1 t to b2; b2 t from a1; b2 template fetch")
}

// Hosts make templates of private images for one owner alone, so an order has to say that an image is private.
func TestAnOrderSaysWhetherAnImageIsPrivate(t *testing.T) {
	for _, test := range []struct {
		names []*v1.Image // of one content
		want  bool
	}{
		{[]*v1.Image{{Private: true}}, true},
		{[]*v1.Image{{}}, false},
		{[]*v1.Image{{Private: true}, {Private: true}}, true},
		{[]*v1.Image{{Private: true}, {}}, false},
		{[]*v1.Image{{}, {Private: true}}, false},
	} {
		h := newHousehold(t, "", 1)
		h.objects.Guests["md-0"].ImageDigest = "sha256:1"
		for i, image := range test.names {
			name := fmt.Sprint("image-", i)
			image.Meta, image.Digest = &v1.Meta{Name: name, Uid: name}, "sha256:1"
			h.objects.Images[name] = image
		}
		orders := h.pass(time.Second)
		if image := orders["a1"].Guests[0].Image; image == nil || image.Private != test.want {
			t.Errorf("of %v, the order has %v", test.names, image)
		}
	}
}
