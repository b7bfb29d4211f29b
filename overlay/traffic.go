// traffic.go reads how much guests of this host have sent to other guests. The packet filter counts packets where they leave
// the guest. So each packet is counted once in a cluster, even if it stays on this host.
package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

const (
	// keepSent is how long the count of a silent pair is kept.
	keepSent = time.Minute
	// maxSent bounds the counted pairs of a host.
	maxSent = 8192
	// nameSize is the size of an interface's name in a key of the filter's sets, bytes.
	nameSize = 16
)

// Sent returns the bytes that each guest of this host has sent to each address, by the guest's tap. The counts only grow,
// but start again at zero after a minute of silence, or when the filter is installed again. Sent does not wait for Apply.
func (o *Overlay) Sent() (map[string]map[netip.Addr]uint64, error) {
	connection, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("read the traffic of guests: %w", err)
	}
	set := &nftables.Set{Table: &nftables.Table{Name: "watari", Family: nftables.TableFamilyINet}, Name: "sent"}
	list, err := connection.GetSetElements(set)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // no guest was plugged in yet
	}
	if err != nil {
		return nil, fmt.Errorf("read the traffic of guests: %w", err)
	}
	sent := map[string]map[netip.Addr]uint64{}
	for _, e := range list {
		if len(e.Key) != nameSize+4 || e.Counter == nil {
			continue
		}
		tap := strings.TrimRight(string(e.Key[:nameSize]), "\x00")
		if sent[tap] == nil {
			sent[tap] = map[netip.Addr]uint64{}
		}
		sent[tap][netip.AddrFrom4([4]byte(e.Key[nameSize:]))] = e.Counter.Bytes
	}
	return sent, nil
}
