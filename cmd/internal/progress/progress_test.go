package progress

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestABlockIsNeverHigherThanTheTerminal(t *testing.T) {
	var screen bytes.Buffer
	lines := New(&screen)
	lines.width, lines.height = 80, 6
	var block []Line
	for i := range 9 {
		block = append(block, Line{Key: fmt.Sprint(i), Text: fmt.Sprintf("guest %d", i)})
	}
	lines.Set(block[:5]...)
	if got, want := screen.String(), "guest 0\nguest 1\nguest 2\nguest 3\nguest 4\n"; got != want {
		t.Errorf("drew %q", got)
	}
	screen.Reset()
	lines.Set(block...)
	if got, want := screen.String(), "\r\x1b[5A\x1b[Jguest 0\nguest 1\nguest 2\nguest 3\n  and 5 more\n"; got != want {
		t.Errorf("drew %q", got)
	}
	screen.Reset()
	lines.Clear()
	if got := screen.String(); !strings.HasPrefix(got, "\r\x1b[5A") {
		t.Errorf("erased %q", got)
	}
}

func TestANoteWhereThereIsNoTerminalStandsAlone(t *testing.T) {
	var screen bytes.Buffer
	lines := New(&screen)
	lines.Set(Line{"a", "begun"})
	lines.Notef("a note")
	lines.Clear()
	if got := screen.String(); got != "begun\na note\n" {
		t.Errorf("wrote %q", got)
	}
}
