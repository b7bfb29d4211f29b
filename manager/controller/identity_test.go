package controller

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	v1 "watari/api/watariv1"
	"watari/ca"
)

func TestAGuestsCertificateIsRenewedWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority, err := ca.New("md")
		if err != nil {
			t.Fatal(err)
		}
		c := &Controller{Deps: Deps{Log: slog.New(slog.DiscardHandler)}, identities: map[identityKey]madeIdentity{}}
		cluster := &v1.Cluster{Meta: &v1.Meta{Name: "md"}, Spec: &v1.ClusterSpec{}, CaCertificate: authority.CertificatePEM(), CaKey: authority.KeyPEM()}
		g := &v1.Guest{Meta: &v1.Meta{Name: "md-0", Uid: "u"}, Cluster: "md", Address: "10.77.0.10"}
		first, renew := c.identify(cluster, g, 1)
		time.Sleep(14 * 24 * time.Hour)
		if same, _ := c.identify(cluster, g, 1); same != first {
			t.Error("it was renewed before half of its life")
		}
		time.Sleep(time.Until(renew))
		second, _ := c.identify(cluster, g, 1)
		if second == first || second.Epoch != first.Epoch {
			t.Fatal("it was not renewed")
		}
		cert, err := ca.ParseCertificate(second.Certificate)
		if err != nil || time.Until(cert.NotAfter) < 29*24*time.Hour {
			t.Errorf("%v, valid until %v", err, cert.NotAfter)
		}
	})
}
