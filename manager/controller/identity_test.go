package controller

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/ca"
)

func TestAGuestsCertificateIsRenewedWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority, err := ca.New("md")
		if err != nil {
			t.Fatal(err)
		}
		c := &Controller{Deps: Deps{Log: slog.New(slog.DiscardHandler)}, identities: map[string]map[uint64]madeIdentity{}}
		cluster := &v1.Cluster{Meta: &v1.Meta{Name: "md"}, Spec: &v1.ClusterSpec{}, CaCertificate: authority.CertificatePEM(), CaKey: authority.KeyPEM()}
		g := &v1.Guest{Meta: &v1.Meta{Name: "md-0", Uid: "u"}, Cluster: "md", Address: "10.77.0.10"}
		first, renew := c.identify(cluster, g, 1, 0)
		time.Sleep(14 * 24 * time.Hour)
		if same, _ := c.identify(cluster, g, 1, 0); same != first {
			t.Error("it was renewed before half of its life")
		}
		time.Sleep(time.Until(renew))
		second, _ := c.identify(cluster, g, 1, 0)
		if second == first || second.Epoch != first.Epoch {
			t.Fatal("it was not renewed")
		}
		cert, err := ca.ParseCertificate(second.Certificate)
		if err != nil || time.Until(cert.NotAfter) < 29*24*time.Hour {
			t.Errorf("%v, valid until %v", err, cert.NotAfter)
		}
		third, _ := c.identify(cluster, g, 1, 1)
		if cert, err = ca.ParseCertificate(third.Certificate); err != nil {
			t.Fatal(err)
		}
		if id, err := ca.IdentityOf(cert); err != nil || id.Generation != 1 || third.Epoch != first.Epoch {
			t.Errorf("after a revocation: %v, generation %d", err, id.Generation)
		}
	})
}

// A failed move uses up an epoch. The identity that the guest has stays the same while the next move makes one for its target.
func TestTheIdentityInUseStaysWhileTheGuestMoves(t *testing.T) {
	authority, err := ca.New("md")
	if err != nil {
		t.Fatal(err)
	}
	c := &Controller{Deps: Deps{Log: slog.New(slog.DiscardHandler)}, identities: map[string]map[uint64]madeIdentity{}}
	cluster := &v1.Cluster{Meta: &v1.Meta{Name: "md"}, Spec: &v1.ClusterSpec{}, CaCertificate: authority.CertificatePEM(), CaKey: authority.KeyPEM()}
	g := &v1.Guest{Meta: &v1.Meta{Name: "md-0", Uid: "u"}, Cluster: "md", Address: "10.77.0.10", Epoch: 5}
	used, _ := c.identify(cluster, g, 5, 0)
	for target := uint64(6); target < 10; target++ { // of moves of which all but the last fail
		c.identify(cluster, g, target, 0)
		if now, _ := c.identify(cluster, g, 5, 0); now != used {
			t.Fatalf("the guest gets another identity when one is made for epoch %d", target)
		}
	}
	g.Epoch = 9
	c.identify(cluster, g, 10, 0)
	if n := len(c.identities["u"]); n != 2 {
		t.Errorf("%d identities are kept", n)
	}
	c.forgetIdentities("u")
	if len(c.identities) != 0 {
		t.Error("those of a deleted guest are kept")
	}
}

func TestASealIsForOneHostOneVolumeAndItsFacts(t *testing.T) {
	controllers := make([]*Controller, 2)
	for i := range controllers {
		authority, err := ca.New("watari")
		if err != nil {
			t.Fatal(err)
		}
		controllers[i] = &Controller{Deps: Deps{Log: slog.New(slog.DiscardHandler), Authority: authority}}
	}
	c := controllers[0]
	facts := &v1.VolumeFacts{Name: "data", Owner: "ann", OwnerUid: "ann-1", SizeBytes: 1 << 30, Generation: 3}
	facts.Seal = c.seal("b1", "uid", facts)
	if !c.sealed("b1", "uid", facts) {
		t.Error("the manager does not know its own seal")
	}
	for what, known := range map[string]bool{
		"another host":      c.sealed("a2", "uid", facts),
		"another volume":    c.sealed("b1", "uid-2", facts),
		"another authority": controllers[1].sealed("b1", "uid", facts),
	} {
		if known {
			t.Errorf("%s: the seal counts", what)
		}
	}
	for what, change := range map[string]func(*v1.VolumeFacts){
		"name":       func(f *v1.VolumeFacts) { f.Name = "home" },
		"owner":      func(f *v1.VolumeFacts) { f.Owner = "bob" },
		"owner uid":  func(f *v1.VolumeFacts) { f.OwnerUid = "ann-2" },
		"size":       func(f *v1.VolumeFacts) { f.SizeBytes++ },
		"generation": func(f *v1.VolumeFacts) { f.Generation++ },
		"no seal":    func(f *v1.VolumeFacts) { f.Seal = nil },
	} {
		other := proto.CloneOf(facts)
		if change(other); c.sealed("b1", "uid", other) {
			t.Errorf("%s: the seal counts for other facts", what)
		}
	}
}
