package tunnel

import (
	"net"
	"net/netip"
	"testing"
)

func TestAHostThatCannotBeDialledIsReachedInsideWireGuard(t *testing.T) {
	for _, only := range []bool{false, true} {
		source, target := twoHosts(t)
		_, port, _ := net.SplitHostPort(target.address)
		// Nothing listens at the address that the manager knows. The host listens at its address inside WireGuard.
		shut, err := net.Listen("tcp", "127.0.0.2:"+port)
		if err != nil {
			t.Skipf("127.0.0.2: %v", err)
		}
		shut.Close()
		asked := 0
		source.config.Inside = func(host string) (netip.Addr, bool) {
			asked++
			return netip.MustParseAddr("127.0.0.1"), only
		}
		stop := target.Expect(Expected{Migration: "m1", Source: "a1"})
		defer stop()
		o := order(source, target)
		o.Address = "127.0.0.2:" + port
		for range 2 {
			out, err := source.Open(t.Context(), o)
			if err != nil {
				t.Fatalf("only %v: %v", only, err)
			}
			out.Close()
		}
		if source.isShut(o.Address) == only {
			t.Errorf("only %v: remembered as shut: %v", only, !only)
		}
	}
}
