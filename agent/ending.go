package agent

// ending.go - explains why a guest ended although the manager wanted it to run.

import (
	"fmt"
	"strings"

	"watari/agent/domain"
	"watari/agent/machine"
	"watari/internal/printable"
)

// How much of a console is quoted.
const (
	quotedLines  = 8
	quotedLength = 160 // characters of a line
	quotedBytes  = 32 << 10
)

// explainEnding adds the hypervisor's explanation to the message of an end.
func explainEnding(message string, e domain.End) string {
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

// quoteConsole returns the last lines of a console, printable, after the line of a kernel panic if there is one.
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

// explain explains an end that no order caused.
func (a *Agent) explain(g *guest, act machine.Act) machine.Result {
	end := a.hypervisor.Ended(g.uid, g.name)
	if act.Broken {
		end.How = "" // this agent ended it, and the message says why
	}
	return machine.Result{Message: explainEnding(act.Record.Message, end),
		LastLines: quoteConsole(a.consoles.tail(g.uid, quotedBytes))}
}
