// Package descriptors prevents child processes from inheriting open files by mistake.
package descriptors

import (
	"math"

	"golang.org/x/sys/unix"
)

// KeepToSelf sets close-on-exec on all open files except standard input, output and error. Without it, a file that this
// program inherited would be inherited by its daemons: a shell's lock (flock 9) would stay locked as long as they run.
// Files passed on purpose (exec.Cmd.ExtraFiles) are not affected. Call it first in main.
func KeepToSelf() {
	// Linux before 5.11 does not support the flag; then nothing changes.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}
