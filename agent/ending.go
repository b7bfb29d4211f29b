package agent

// ending.go - what is told of a guest that ended though it was wanted.

import (
	"fmt"
	"strings"

	"watari/internal/printable"
)

// Ending is how a domain ended, as far as the hypervisor knows.
type Ending struct {
	How  string   // "its QEMU crashed or was killed"; empty: not known
	Said []string // lines that QEMU wrote to its log
}

// How much of a console is quoted.
const (
	quotedLines  = 8
	quotedLength = 160 // characters of a line
	quotedBytes  = 32 << 10
)

// explainEnding adds to the message of an end what the hypervisor says of it.
func explainEnding(message string, e Ending) string {
	if e.How != "" {
		message += ": " + e.How
	}
	if said := printable.LastLines(strings.Join(e.Said, "\n"), 2, quotedLength); len(said) > 0 {
		message += fmt.Sprintf("; QEMU's log ends with: %s", strings.Join(said, " / "))
	}
	return message
}

// panicMark begins the line by which Linux says why it panics. Registers and a call trace follow.
const panicMark = "Kernel panic - not syncing"

// quoteConsole returns the lines that a console ends with, printable, and before them that of a panic.
func quoteConsole(text string) string {
	lines := printable.LastLines(text, quotedLines, quotedLength)
	quoted := strings.Join(lines, "\n")
	if at := strings.LastIndex(text, panicMark); at >= 0 && !strings.Contains(quoted, panicMark) {
		begin := strings.LastIndexByte(text[:at], '\n') + 1
		line, _, _ := strings.Cut(text[begin:], "\n")
		quoted = printable.Line(strings.TrimSpace(line), quotedLength) + "\n" + quoted
	}
	return quoted
}

// withEnding completes the record of an end that nobody asked for.
func (g *guest) withEnding(from, to *Record) *Record {
	if to.Phase != PhaseEnded || to.Outcome != OutcomeGone || from == nil || from.Phase != PhaseStarted && from.Phase != PhaseSending {
		return to
	}
	r := *to
	r.Message = explainEnding(r.Message, g.agent.hypervisor.Ended(g.uid, g.name))
	r.LastLines = quoteConsole(g.agent.consoles.tail(g.uid, quotedBytes))
	return &r
}
