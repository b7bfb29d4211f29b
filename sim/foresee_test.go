package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/policy"
)

// pastOf makes a past of two hosts with a guest on the first one, whose owner is active from 10 to 20 minutes after the
// beginning.
func pastOf(text string, step time.Duration) Past {
	since := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	o := core.NoObjects()
	parsed, err := policy.Parse(text)
	if err != nil {
		panic(err)
	}
	p := Past{Objects: o, Policy: parsed, Samples: map[string][]*v1.HostSample{}, Since: since, Until: since.Add(time.Hour)}
	for _, name := range []string{"a1", "a2"} {
		o.Hosts[name] = &v1.Host{Meta: &v1.Meta{Name: name, Uid: "uid-" + name}, Info: &v1.HostInfo{BootId: "boot-" + name, Site: "a", Cores: 4, MemoryBytes: 4 << 30, Lent: true}}
		for at := since; at.Before(p.Until); at = at.Add(step) {
			idle := 1e6
			if name == "a1" && at.Sub(since) >= 10*time.Minute && at.Sub(since) < 20*time.Minute {
				idle = 1
			}
			p.Samples[name] = append(p.Samples[name], &v1.HostSample{At: timestamppb.New(at), Seconds: step.Seconds(), Owner: &v1.OwnerActivity{InputIdle: &idle}})
		}
	}
	o.Images["img"] = &v1.Image{Meta: &v1.Meta{Name: "img"}, Digest: "sha256:img"}
	o.Clusters["md"] = &v1.Cluster{Meta: &v1.Meta{Name: "md", Uid: "uid-md"}, Spec: &v1.ClusterSpec{Guests: 1}, Prefix: "10.0.0.0/24"}
	o.Guests["md-0"] = &v1.Guest{Meta: &v1.Meta{Name: "md-0", Uid: "00000000-0000-4000-8000-000000000001"}, Cluster: "md", Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 30},
		ImageDigest: "sha256:img", Host: "a1", Epoch: 3, LastEpoch: 3, StartedEpoch: 1, BootId: "boot-a1", Address: "10.0.0.1"}
	return p
}

func messages(steps []*v1.PolicyStep, since time.Time) (list []string) {
	for _, s := range steps {
		list = append(list, s.At.AsTime().Sub(since).Round(time.Second).String()+" "+s.Message)
	}
	return list
}

func TestForesee(t *testing.T) {
	p := pastOf(policy.Default, 5*time.Second)
	steps, notes := Foresee(p)
	// The owner is away from 20 minutes on. The samples show that 5 s later, and it has to hold for 3 minutes.
	want := []string{
		`10m5s host a1 takes no guests: host.input_idle < duration("10s")`,
		`10m5s guest md-0 moves from a1 to a2: the owner of host a1 is back`,
		"23m5s host a1 takes guests again",
	}
	if got := messages(steps, p.Since); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(notes) != 1 {
		t.Errorf("notes: %q", notes)
	}
	again, _ := Foresee(p)
	if !slices.Equal(messages(again, p.Since), messages(steps, p.Since)) {
		t.Error("two replays of one past differ")
	}
}

func TestForeseeWithoutRoom(t *testing.T) {
	p := pastOf(policy.Default, 5*time.Second)
	p.Objects.Hosts["a2"].Info.MemoryBytes = 1 << 20
	steps, _ := Foresee(p)
	if got := messages(steps, p.Since); len(got) != 3 || !strings.Contains(got[1], "guest md-0 stays on host a1") || !strings.Contains(got[1], "are free") {
		t.Errorf("got %q", got)
	}
}

// Where no host has room, a cluster that can be saved is suspended until the owner has left again.
func TestForeseeASuspension(t *testing.T) {
	p := pastOf(policy.Default, 5*time.Second)
	p.Objects.Hosts["a2"].Info.MemoryBytes = 1 << 20
	p.Objects.Clusters["md"].CheckpointRecipient = "recipient"
	steps, _ := Foresee(p)
	got := messages(steps, p.Since)
	if len(got) != 5 || !strings.Contains(got[2], "cluster md is suspended: the owner of host a1 is back") || !strings.HasSuffix(got[4], "cluster md goes on") {
		t.Errorf("got %q", got)
	}
}

func TestForeseeCoarsely(t *testing.T) {
	p := pastOf(policy.Default, 10*time.Minute)
	steps, notes := Foresee(p)
	if got := messages(steps, p.Since); len(got) != 3 || !strings.HasPrefix(got[1], "20m0s guest md-0 moves") || !strings.Contains(strings.Join(notes, " "), "rough") {
		t.Errorf("got %q, notes %q", got, notes)
	}
}

func TestForeseeEndsEarly(t *testing.T) {
	p := pastOf(policy.Default, 5*time.Second)
	p.Go = func() bool { return false }
	if steps, notes := Foresee(p); len(steps) != 0 || !strings.Contains(strings.Join(notes, " "), "took too long") {
		t.Errorf("got %v, notes %q", steps, notes)
	}
}

func BenchmarkForesee(b *testing.B) {
	for b.Loop() {
		Foresee(pastOf(policy.Default, 5*time.Second))
	}
}

func TestForeseeBalance(t *testing.T) {
	p := pastOf("balance: {}\n", 5*time.Second)
	p.Objects.Clusters["md"].Spec.Guests = 4
	p.Guests = map[string][]*v1.GuestStep{}
	for i := range 4 {
		g := proto.CloneOf(p.Objects.Guests["md-0"])
		g.Meta.Name, g.Meta.Uid, g.Address = fmt.Sprintf("md-%d", i), fmt.Sprintf("00000000-0000-4000-8000-%012d", i+1), fmt.Sprintf("10.0.0.%d", i+1)
		g.Shape.MemoryBytes = 1 << 29
		p.Objects.Guests[g.Meta.Name] = g
		for at := p.Since.Add(5 * time.Minute); at.Before(p.Until); at = at.Add(5 * time.Second) {
			p.Guests[g.Meta.Uid] = append(p.Guests[g.Meta.Uid], &v1.GuestStep{At: timestamppb.New(at), Seconds: 5, Sample: &v1.GuestSample{Uid: g.Meta.Uid, Name: g.Meta.Name, Cpu: 0.5, CpuWait: 0.5}})
		}
	}
	for _, h := range p.Objects.Hosts {
		h.Info.CpuShare = 2
	}
	steps, _ := Foresee(p)
	// Something is known of the guests after 5 minutes and 20 seconds. Then two of the four guests move, and none moves
	// again.
	if got := messages(steps, p.Since); len(got) != 2 || !strings.HasPrefix(got[0], "5m2") ||
		!strings.HasSuffix(got[0], "moves from a1 to a2: balance: the load of a1 falls from 2.00 to 1.50, and that of a2 grows from 0.00 to 0.50; this gains 2.30 and takes about 5 s") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

func TestForeseeLocality(t *testing.T) {
	p := pastOf("locality: {}\n", 5*time.Second)
	p.Objects.Clusters["md"].Spec.Guests = 2
	g := proto.CloneOf(p.Objects.Guests["md-0"])
	g.Meta.Name, g.Meta.Uid, g.Address, g.Index, g.Host, g.BootId = "md-1", "00000000-0000-4000-8000-000000000002", "10.0.0.2", 1, "a2", "boot-a2"
	p.Objects.Guests["md-1"] = g
	p.Traffic = func(uid string) map[string]float64 {
		if uid == g.Meta.Uid {
			return map[string]float64{p.Objects.Guests["md-0"].Meta.Uid: 32 << 20}
		}
		return nil
	}
	steps, notes := Foresee(p)
	if got := messages(steps, p.Since); len(got) != 1 ||
		!strings.HasSuffix(got[0], "guest md-0 moves from a1 to a2: locality: it exchanges 32 MiB/s with md-1; 1 move of cluster md cut its bytes times distance from 32 MiB/s to 0 B/s") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if !strings.Contains(strings.Join(notes, " "), "locality is tested with the traffic of now") {
		t.Errorf("notes %q", notes)
	}
}
