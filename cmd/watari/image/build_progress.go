package image

// build_progress.go - shows how a build goes: one line redrawn on a terminal, else a line for each step.

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"watari/guest/image"
)

// buildProgress shows the steps of a build on a terminal or in a log.
type buildProgress struct {
	out      *os.File
	terminal bool
	step     string
	began    time.Time
	shown    time.Time
}

func newBuildProgress(out *os.File) *buildProgress {
	return &buildProgress{out: out, terminal: term.IsTerminal(int(out.Fd()))}
}

func (b *buildProgress) update(p image.Progress) {
	if p.Step != b.step {
		b.end()
		b.step, b.began, b.shown = p.Step, time.Now(), time.Time{}
		if !b.terminal {
			fmt.Fprintf(b.out, "%s ...\n", p.Step)
		}
	}
	pause := 5 * time.Second
	if b.terminal {
		pause = 100 * time.Millisecond
	}
	if time.Since(b.shown) < pause {
		return
	}
	if b.terminal {
		fmt.Fprintf(b.out, "\r\x1b[K%s%s", p.Step, amount(p))
	} else if p.Total > 0 && time.Since(b.began) > pause {
		fmt.Fprintf(b.out, "%s%s\n", p.Step, amount(p))
	}
	b.shown = time.Now()
}

// end leaves the step's line with the time it took.
func (b *buildProgress) end() {
	if b.step != "" && b.terminal {
		fmt.Fprintf(b.out, "\r\x1b[K%s (%.1f s)\n", b.step, time.Since(b.began).Seconds())
	}
	b.step = ""
}

// amount draws how much of a step is done.
func amount(p image.Progress) string {
	if p.Total <= 0 {
		return ""
	}
	const cells = 24
	done := min(p.Done, p.Total)
	full := int(done * cells / p.Total)
	return fmt.Sprintf(" [%s%s] %d of %d %s", strings.Repeat("=", full), strings.Repeat(" ", cells-full), done, p.Total, p.Unit)
}
