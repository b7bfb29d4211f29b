package bare

import (
	"fmt"

	v1 "watari/api/watariv1"
	"watari/ca"
)

// Identities returns the identities of a cluster of n guests. The first guest serves the home directory. Only the first two
// guests are ends of a network; the second one's machine may stand in for further guests.
func Identities(n int) ([]*v1.Identity, error) {
	authority, err := ca.New("md")
	if err != nil {
		return nil, err
	}
	var list []*v1.Identity
	var peers []*v1.Peer
	for i := range n {
		name, address := fmt.Sprintf("md-%d", i), fmt.Sprintf("10.77.0.%d", 10+i)
		pair, err := authority.IssueGuest("md", name, 0)
		if err != nil {
			return nil, err
		}
		peers = append(peers, &v1.Peer{Name: name, Address: address, Slots: 1})
		list = append(list, &v1.Identity{
			GuestUid: fmt.Sprintf("00000000-0000-4000-8000-00000000000%d", i), Name: name, Cluster: "md",
			Address: address, Prefix: "10.77.0.0/24", Mtu: 1420, Mac: mac(i),
			Gateway: "169.254.77.1", GatewayMac: mac(otherEnd(i)),
			MachineId: fmt.Sprintf("%032d", i+1), Entropy: make([]byte, 64),
			CaCertificate: authority.CertificatePEM(), Certificate: pair.Certificate, Key: pair.Key,
			HomeServer: "10.77.0.10", Epoch: 1, User: "watari", Uid: 1000,
		})
	}
	for _, i := range list {
		i.Peers = peers
	}
	return list, nil
}

// otherEnd is the guest to whose machine a guest's packets go.
func otherEnd(i int) int {
	if i == 0 {
		return 1
	}
	return 0
}

func mac(i int) string { return fmt.Sprintf("02:77:0a:4d:00:%02x", 10+i) }
