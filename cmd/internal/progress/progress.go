// Package progress shows what happens while a command waits: lines that are redrawn on a terminal, or one plain line
// for each change if the output is not a terminal. It escapes control characters in them.
package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/internal/printable"
)

// restatePause is the minimum time between two plain lines with the same key that differ only in a percentage.
const restatePause = 5 * time.Second

// Line is the current state of one thing. Key identifies the thing.
type Line struct{ Key, Text string }

// Lines is a block of progress lines. Several goroutines may use it.
type Lines struct {
	mu       sync.Mutex
	w        io.Writer
	width    int // of the terminal; 0: not a terminal
	height   int // of the terminal, in lines
	drawn    int // lines on the terminal now
	current  []Line
	said     map[string]string // last plain line by key, up to its percentage
	saidText map[string]string
	saidAt   map[string]time.Time
}

// New returns a block of lines that is shown on w.
func New(w io.Writer) *Lines {
	width, height := cli.Terminal(w)
	return &Lines{w: w, width: width, height: height, said: map[string]string{}, saidText: map[string]string{}, saidAt: map[string]time.Time{}}
}

// Terminal reports whether lines are redrawn.
func (l *Lines) Terminal() bool { return l.width > 0 }

// Set replaces the lines shown.
func (l *Lines) Set(lines ...Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.width == 0 {
		for _, line := range lines {
			l.say(line)
		}
		return
	}
	l.erase()
	l.current = lines
	l.draw()
}

// Notef writes a permanent line above the block.
func (l *Lines) Notef(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.erase()
	fmt.Fprintln(l.w, printable.Text(fmt.Sprintf(format, args...)))
	l.draw()
}

// Trouble shows that the manager does not answer while a command waits.
func (l *Lines) Trouble(err error) {
	l.Set(Line{Key: "manager", Text: "waiting for the manager: " + client.Brief(err)})
}

// Keep leaves the current lines on the terminal and begins a new block.
func (l *Lines) Keep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drawn, l.current = 0, nil
}

// Clear erases the block.
func (l *Lines) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.erase()
	l.current = nil
}

func (l *Lines) erase() {
	if l.drawn > 0 {
		fmt.Fprintf(l.w, "\r\x1b[%dA\x1b[J", l.drawn)
		l.drawn = 0
	}
}

func (l *Lines) draw() {
	lines, more := l.current, 0
	if most := l.height - 1; l.height > 0 && len(lines) > most { // lines that have scrolled off the screen cannot be erased
		more = len(lines) - (most - 1)
		lines = lines[:most-1]
	}
	for _, line := range lines {
		fmt.Fprintln(l.w, printable.Line(line.Text, l.width-1))
	}
	if l.drawn = len(lines); more > 0 {
		fmt.Fprintf(l.w, "  and %d more\n", more)
		l.drawn++
	}
}

// say writes a plain line, unless the last line of the same key was equal, or differed only in its percentage a moment ago.
func (l *Lines) say(line Line) {
	if line.Text == "" || l.saidText[line.Key] == line.Text {
		return
	}
	gist, _, share := strings.Cut(line.Text, "%")
	if share {
		gist = strings.TrimRight(gist, "0123456789. ")
	}
	if l.said[line.Key] == gist && time.Since(l.saidAt[line.Key]) < restatePause {
		return
	}
	l.said[line.Key], l.saidText[line.Key], l.saidAt[line.Key] = gist, line.Text, time.Now()
	fmt.Fprintln(l.w, printable.Text(line.Text))
}

// Bar returns a progress bar with sizes: "[=====>    ]  52 %  133 MiB of 256 MiB". Without a terminal, it returns only
// the words.
func (l *Lines) Bar(done, whole uint64) string {
	if whole == 0 {
		return output.Size(done)
	}
	done = min(done, whole)
	words := fmt.Sprintf("%3d %%  %s of %s", done*100/whole, output.Size(done), output.Size(whole))
	if l.width == 0 {
		return strings.TrimLeft(words, " ")
	}
	const cells = 24
	full := int(done * cells / whole)
	bar := strings.Repeat("=", full)
	if full < cells {
		bar += ">"
	}
	return fmt.Sprintf("[%-*s] %s", cells, bar, words)
}
