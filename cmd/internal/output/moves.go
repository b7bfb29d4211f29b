package output

import (
	"fmt"

	v1 "watari/api/watariv1"
)

// Moves describes the traffic of moves from and to a host: "in 25 MiB/s, out 0 B/s". It is empty if there is none.
func Moves(s *v1.HostSample) string {
	if !(s.GetMigrationReceived()+s.GetMigrationSent() > 0) {
		return ""
	}
	return fmt.Sprintf("in %s/s, out %s/s", Size(uint64(s.GetMigrationReceived())), Size(uint64(s.GetMigrationSent())))
}
