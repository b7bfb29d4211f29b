package core

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

func (h *household) allow(name string, s *v1.Storage) {
	s.Meta = &v1.Meta{Name: name}
	h.ask(func(a *Admission) (Change, error) { return a.AllowStorage(s) })
}

func mount(server, path, at string, readOnly bool) *v1.Mount {
	return &v1.Mount{Server: server, Path: path, At: at, ReadOnly: readOnly}
}

func TestGuestsMountWhatIsAllowedNow(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.objects.Users["ann"] = &v1.User{Meta: &v1.Meta{Name: "ann"}}
	c := proto.CloneOf(h.objects.Clusters["md"])
	c.Meta.Owner = "ann"
	c.Spec.Mounts = []*v1.Mount{mount("nfs.lab", "/data/in", "/data", true)}
	h.objects.Clusters["md"] = c
	mounted := func(orders map[string]*v1.HostWanted) string {
		var list []string
		for _, g := range orders["a1"].Guests {
			for _, m := range g.Identity.Mounts {
				list = append(list, strings.TrimPrefix(g.Name, "md-")+" "+m.Server+":"+m.Path+" "+m.At)
			}
		}
		return strings.Join(list, ", ")
	}
	if got := mounted(h.pass(time.Second)); got != "" {
		t.Errorf("before it is allowed, they mount %s", got)
	}
	h.allow("other", &v1.Storage{Server: "nfs.lab", Path: "/database"})
	h.allow("inputs", &v1.Storage{Server: "NFS.lab", Path: "/data", ReadOnly: true, Users: []string{"ann"}})
	if a, b := h.objects.Storages["other"].GatewayPort, h.objects.Storages["inputs"].GatewayPort; a == b || a < firstGatewayPort {
		t.Errorf("their ports are %d and %d", a, b)
	}
	if got := mounted(h.pass(time.Second)); got != "0 NFS.lab:/data/in /data, 1 NFS.lab:/data/in /data" {
		t.Errorf("they mount %s", got)
	}
	h.now = h.now.Add(time.Minute)
	h.allow("all", &v1.Storage{Server: "nfs.lab", Path: "/"})
	if got := mounted(h.pass(time.Second)); got != "0 NFS.lab:/data/in /data, 1 NFS.lab:/data/in /data" {
		t.Errorf("when more is allowed, they mount %s", got)
	}
	h.ask(func(a *Admission) (Change, error) { return a.ForbidStorage("all", false) })
	if _, err := h.admission().ForbidStorage("inputs", false); err == nil || !strings.Contains(err.Error(), "storage inputs is mounted in md") {
		t.Errorf("it is forbidden while in use: %v", err)
	}
	h.ask(func(a *Admission) (Change, error) { return a.ForbidStorage("inputs", true) })
	if got := mounted(h.pass(time.Second)); got != "" {
		t.Errorf("when it is forbidden, they mount %s", got)
	}
}

func TestMountsAreCheckedBeforeAClusterIsMade(t *testing.T) {
	h := newHousehold(t, "", 0)
	h.objects.Users["ann"], h.objects.Users["bob"] = &v1.User{Meta: &v1.Meta{Name: "ann"}}, &v1.User{Meta: &v1.Meta{Name: "bob"}}
	h.objects.Images["mpi"] = &v1.Image{Meta: &v1.Meta{Name: "mpi"}, Digest: "sha256:1"}
	h.allow("inputs", &v1.Storage{Server: "nfs.lab", Path: "/in", ReadOnly: true})
	h.allow("bobs", &v1.Storage{Server: "nfs.lab", Path: "/bob", Users: []string{"bob"}})
	h.allow("far", &v1.Storage{Server: "nfs.lab", Path: "/far", Sites: []string{"b"}})
	for _, c := range []struct {
		want   string
		sites  []string
		mounts []*v1.Mount
	}{
		{"may only be read", nil, []*v1.Mount{mount("nfs.lab", "/in", "/data", false)}},
		{"user ann may not mount nfs.lab:/bob", nil, []*v1.Mount{mount("nfs.lab", "/bob", "/data", true)}},
		{"user ann may not mount nfs.lab:/inside", nil, []*v1.Mount{mount("nfs.lab", "/inside", "/data", true)}},
		{"keep the guests there: --site b", nil, []*v1.Mount{mount("nfs.lab", "/far", "/data", false)}},
		{"not from site a", []string{"a", "b"}, []*v1.Mount{mount("nfs.lab", "/far", "/data", false)}},
		{"needs that folder itself", nil, []*v1.Mount{mount("nfs.lab", "/in", "/usr/data", true)}},
		{"needs that folder itself", nil, []*v1.Mount{mount("nfs.lab", "/in", "/", true)}},
		{"cannot be where guests mount", nil, []*v1.Mount{mount("nfs.lab", "/in", "/data/../etc", true)}},
		{"cannot be where guests mount", nil, []*v1.Mount{mount("nfs.lab", "/in", "/da\x1bta", true)}},
		{"cannot be a folder of server", nil, []*v1.Mount{mount("nfs.lab", "in", "/data", true)}},
		{"cannot be a server", nil, []*v1.Mount{mount("nfs lab,port=1", "/in", "/data", true)}},
		{"would hide the second", nil, []*v1.Mount{mount("nfs.lab", "/in", "/data", true), mount("nfs.lab", "/in", "/data/x", true)}},
	} {
		spec := &v1.ClusterSpec{Guests: 1, Image: "mpi", Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 64 << 20}, Sites: c.sites, Mounts: c.mounts}
		a := h.admission()
		a.Caller = Caller{Name: "ann"}
		if _, err := a.CreateCluster(ClusterRequest{Name: "x", Spec: spec, UID: "00000000-0000-4000-8000-000000000099"}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
	if _, err := h.admission().AllowStorage(&v1.Storage{Meta: &v1.Meta{Name: "inputs"}, Server: "nfs.lab", Path: "/in"}); err == nil || !strings.Contains(err.Error(), "it differs") {
		t.Errorf("another storage of the same name: %v", err)
	}
	same := &v1.Storage{Meta: &v1.Meta{Name: "inputs"}, Server: "nfs.lab", Path: "/in", ReadOnly: true}
	if change, err := h.admission().AllowStorage(same); err != nil || len(change.Ops) != 0 {
		t.Errorf("the same again: %v, %v", change, err)
	}
}
