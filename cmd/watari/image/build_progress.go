package image

// build_progress.go - shows the progress of a build.

import (
	"fmt"
	"io"
	"strings"
	"time"

	"watari/cmd/internal/progress"
	"watari/guest/image"
)

// buildProgress shows the steps of a build: the current step below the completed ones, with the time that each took.
type buildProgress struct {
	lines *progress.Lines
	step  string
	began time.Time
}

func newBuildProgress(w io.Writer) *buildProgress { return &buildProgress{lines: progress.New(w)} }

func (b *buildProgress) update(p image.Progress) {
	if p.Step != b.step {
		b.done()
		b.step, b.began = p.Step, time.Now()
	}
	b.lines.Set(progress.Line{Key: p.Step, Text: p.Step + amount(p, b.lines.Terminal())})
}

// done leaves the current step on a terminal, if it took a noticeable time.
func (b *buildProgress) done() {
	took := time.Since(b.began)
	if b.step != "" && b.lines.Terminal() && took > 100*time.Millisecond {
		b.lines.Clear()
		b.lines.Notef("%s: %.1f s", b.step, took.Seconds())
	}
	b.step = ""
}

// end erases the progress.
func (b *buildProgress) end() {
	b.done()
	b.lines.Clear()
}

// amount returns how much of a step is done, in words or with a bar.
func amount(p image.Progress, bar bool) string {
	if p.Total <= 0 || p.Done <= 0 {
		return ""
	}
	done := min(p.Done, p.Total)
	words := fmt.Sprintf("%d %%", done*100/p.Total)
	if p.Unit != "%" {
		words += fmt.Sprintf("  %d of %d %s", done, p.Total, p.Unit)
	}
	if !bar {
		return ": " + words
	}
	const cells = 24
	full := int(done * cells / p.Total)
	return fmt.Sprintf(": [%s%s] %s", strings.Repeat("=", full), strings.Repeat(" ", cells-full), words)
}
