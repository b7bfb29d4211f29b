// How the link process keeps the garbage collector from delaying packets.

package wanlink

import "runtime/debug"

// Steady makes garbage collections rare in a process that only forwards. A collection stops forwarding until all other
// threads of the process have run, which takes tens of milliseconds on a busy machine.
func Steady() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(1 << 30) // above it, collections start again
}
