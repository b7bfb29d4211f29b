package printable

import (
	"slices"
	"strings"
	"testing"
)

func TestNothingButPrintableCharactersIsLeft(t *testing.T) {
	for text, want := range map[string]string{
		"reboot: Power down":     "reboot: Power down",
		"\x1b[2J\x1b]0;title\a":  `\x1b[2J\x1b]0;title\x07`,
		"a\tb\rc\x7f":            `a\x09b\x0dc\x7f`,
		"caf\u00e9 \xff\xc3":     `café \xff\xc3`,
		"abc\u202etxt.exe":       `abc\u202etxt.exe`,
		"\u0085\u2028\U000e0001": `\u0085\u2028\U000e0001`,
	} {
		got := Line(text, 200)
		if got != want {
			t.Errorf("%q is %q, not %q", text, got, want)
		}
		if again := Line(got, 200); again != got {
			t.Errorf("%q is escaped twice: %q", got, again)
		}
	}
}

func TestLongLinesAreCut(t *testing.T) {
	for _, text := range []string{strings.Repeat("é", 30), strings.Repeat("\x00", 30), "0123456789"} {
		got := Line(text, 10)
		if n := len([]rune(got)); n > 10 || n < 7 {
			t.Errorf("%q has %d characters, of 10 at most", got, n)
		}
	}
}

func TestTheLastLinesAreThoseThatSaySomething(t *testing.T) {
	got := LastLines("one\r\ntwo\r\n\r\n  three \r\n\n", 2, 80)
	if want := []string{"two", "three"}; !slices.Equal(got, want) {
		t.Errorf("got %q, not %q", got, want)
	}
	if got := LastLines("", 2, 80); len(got) != 0 {
		t.Errorf("got %q of nothing", got)
	}
}

func TestAWriterEscapesHoweverTheTextIsCut(t *testing.T) {
	text := "boot\r\n\x1b[31mé\tred\xff\rover\r\n"
	want := "boot\n" + `\x1b[31mé` + "\tred" + `\xff\x0dover` + "\n"
	for size := 1; size <= len(text); size++ {
		var b strings.Builder
		w := Writer(&b)
		for part := range slices.Chunk([]byte(text), size) {
			if n, err := w.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		if b.String() != want {
			t.Errorf("in parts of %d: %q, not %q", size, b.String(), want)
		}
	}
}

func TestATextKeepsItsLines(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		"one\n\ttwo é 渡り":              "one\n\ttwo é 渡り",
		"\x1b]0;title\a\r\n\xff\u202e": `\x1b]0;title\x07\x0d` + "\n" + `\xff\u202e`,
	} {
		if got := Text(text); got != want || Text(got) != got {
			t.Errorf("%q: %q, not %q; again: %q", text, got, want, Text(got))
		}
	}
}
