// How the link process keeps its garbage collector out of the way of packets.

package wanlink

import "runtime/debug"

// Steady makes collections of garbage rare in a process that only forwards: each would stop forwarding until every
// other thread of the process has been run, which on a busy machine takes tens of milliseconds.
func Steady() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(1 << 30) // past it, collections come back
}
