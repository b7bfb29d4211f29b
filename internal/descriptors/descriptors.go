// Package descriptors keeps open files from being handed down to child processes by mistake.
package descriptors

import (
	"math"

	"golang.org/x/sys/unix"
)

// KeepToSelf marks all open files but standard input, output and error to be closed in the programs that this one
// starts. What a program was started with would go on to its daemons else: a shell's lock (flock 9) would stay held for
// as long as they run. What is given to a child on purpose (exec.Cmd.ExtraFiles) is not concerned. Called first in main.
func KeepToSelf() {
	// Linux before 5.11 knows no such flag; there everything is as it would be without.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}
