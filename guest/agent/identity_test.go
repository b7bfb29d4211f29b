package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "watari/api/watariv1"
)

func identity() *v1.Identity {
	return &v1.Identity{
		GuestUid: "u", Name: "md-1", Cluster: "md", Address: "10.77.0.11", Mac: "02:77:0a:4d:00:0b",
		Gateway: "169.254.77.1", GatewayMac: "fe:77:61:74:61:72", MachineId: strings.Repeat("ab", 16), User: "watari", Uid: 1000,
		Peers: []*v1.Peer{{Name: "md-0", Address: "10.77.0.10", Slots: 2}, {Name: "md-1", Address: "10.77.0.11", Slots: 1}},
	}
}

func TestMistakenIdentitiesAreRefused(t *testing.T) {
	if _, err := check(identity()); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*v1.Identity){
		"name":            func(i *v1.Identity) { i.Name = "md 1" },
		"address":         func(i *v1.Identity) { i.Address = "10.77.0" },
		"MAC":             func(i *v1.Identity) { i.Mac = "02" },
		"gateway":         func(i *v1.Identity) { i.Gateway = "x" },
		"gateway's MAC":   func(i *v1.Identity) { i.GatewayMac = "" },
		"user":            func(i *v1.Identity) { i.User = "a:b" },
		"peer's name":     func(i *v1.Identity) { i.Peers[0].Name = "md-0\nevil" },
		"address of peer": func(i *v1.Identity) { i.Peers[0].Address = "" },
	} {
		i := identity()
		spoil(i)
		if _, err := check(i); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestSystemFilesAndUser(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/passwd", "root:x:0:0:root:/root:/bin/bash\nwatari:x:500:500::/home/watari:/bin/sh\nother:x:1000:1000::/:/bin/sh")
	write("etc/group", "root:x:0:\n")
	c, err := check(identity())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := writeSystemFiles(root, c); err != nil {
			t.Fatal(err)
		}
		if err := makeUser(root, "watari", 1000); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"etc/hosts":      "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n10.77.0.10\tmd-0\n10.77.0.11\tmd-1\n",
		"etc/hostname":   "md-1\n",
		"etc/machine-id": strings.Repeat("ab", 16) + "\n",
		"etc/passwd":     "root:x:0:0:root:/root:/bin/bash\nother:x:1000:1000::/:/bin/sh\nwatari:x:1000:1000::/home/watari:/bin/sh\n",
		"etc/group":      "root:x:0:\nwatari:x:1000:\n",
	} {
		if got, err := os.ReadFile(filepath.Join(root, path)); string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for line, want := range map[string]string{"%s slots=%d\n": "md-0 slots=2\nmd-1 slots=1\n", "%s:%d\n": "md-0:2\nmd-1:1\n"} {
		if got := string(hostfile(line, c.GetPeers())); got != want {
			t.Errorf("hostfile %q, want %q", got, want)
		}
	}
}

func TestNFSServerAnswersForPeersAlone(t *testing.T) {
	s := newNFSServer(nil)
	s.wanted = homeWanted{path: "/home/watari", uid: 1000, peers: "10.77.0.10 10.77.0.11 "}
	for _, test := range []struct {
		answer    func([]string) string
		ask, want string
	}{
		{s.whoIs, "nfsd 10.77.0.11", "nfsd 10.77.0.11 2147483647 watari"},
		{s.whoIs, "nfsd 10.77.0.1", "nfsd 10.77.0.1 2147483647"},
		{s.whoIs, "nfsd ::ffff:10.77.0.10", "nfsd ::ffff:10.77.0.10 2147483647 watari"},
		{s.whereIs, `watari 1 \x00000000`, `watari 1 \x00000000 2147483647 /home/watari`},
		{s.whereIs, `watari 6 \x00000000`, `watari 6 \x00000000 2147483647`},
		{s.mayHave, "watari /home/watari", "watari /home/watari 2147483647 9236 1000 1000 0"},
		{s.mayHave, "watari /", "watari / 2147483647"},
		{s.mayHave, "nonsense", ""},
	} {
		if got := test.answer(strings.Fields(test.ask)); got != test.want {
			t.Errorf("%s: %q, want %q", test.ask, got, test.want)
		}
	}
}

func TestPathsInTheHome(t *testing.T) {
	h := newHome(nil)
	if h.within("/home/watari") {
		t.Error("within a home before one is wanted")
	}
	h.wanted.path = "/home/watari"
	for path, want := range map[string]bool{
		"/home/watari": true, "/home/watari/runs/a": true, "/home/watarix": false, "/home": false, "": false, "/home/watari/../x": false,
	} {
		if h.within(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

// The file system may be full when a guest gets a new identity, of which most is as before.
func TestAFileThatIsAsWantedIsNotWrittenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	write := func(text string, mode os.FileMode) os.FileInfo {
		if err := writeFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := write("one", 0o644)
	if !os.SameFile(first, write("one", 0o644)) {
		t.Error("it is written again")
	}
	if os.SameFile(first, write("two", 0o644)) || write("two", 0o600).Mode() != 0o600 {
		t.Error("a change is not written")
	}
}
