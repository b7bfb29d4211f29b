// Package printable makes text that a guest wrote fit for a terminal or a message. Escape sequences, control
// characters, bytes that are no UTF-8 and invisible characters become their escaped form, as in `\x1b`.
package printable

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line is s on one line of at most limit characters. Line of its own result is the same again.
func Line(s string, limit int) string {
	var b strings.Builder
	n := 0
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		word := escape(r, s[:size])
		if n += utf8.RuneCountInString(word); n > limit {
			return cut(b.String(), limit-1) + "…"
		}
		b.WriteString(word)
		s = s[size:]
	}
	return b.String()
}

// cut is the first n characters of s.
func cut(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// Lines is s with each of its lines as Line has it.
func Lines(s string, limit int) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Line(strings.TrimSuffix(lines[i], "\r"), limit)
	}
	return strings.Join(lines, "\n")
}

// LastLines is the end of a text: its last n lines that are not blank, as Line has them.
func LastLines(s string, n, limit int) []string {
	var last []string
	for len(last) < n && s != "" {
		at := strings.LastIndexByte(s, '\n')
		if line := strings.TrimSpace(s[at+1:]); line != "" {
			last = append([]string{Line(line, limit)}, last...)
		}
		s = s[:max(at, 0)]
	}
	return last
}

func escape(r rune, raw string) string {
	switch {
	case r == utf8.RuneError && len(raw) == 1, r < utf8.RuneSelf && !unicode.IsPrint(r):
		return fmt.Sprintf(`\x%02x`, raw[0])
	case unicode.IsPrint(r):
		return raw
	case r > 0xffff:
		return fmt.Sprintf(`\U%08x`, r)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// Writer writes to w what is written to it, escaped. Ends of lines and tabs pass, and a carriage return before the
// end of a line is left out.
func Writer(w io.Writer) io.Writer { return &writer{w: w} }

type writer struct {
	w    io.Writer
	rest []byte // the beginning of a character, or a carriage return, at the end of the last write
}

func (w *writer) Write(data []byte) (int, error) {
	text := append(w.rest, data...)
	var b strings.Builder
	for len(text) > 0 && utf8.FullRune(text) && !(len(text) == 1 && text[0] == '\r') {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r == '\r' && text[1] == '\n':
		default:
			b.WriteString(escape(r, string(text[:size])))
		}
		text = text[size:]
	}
	w.rest = append([]byte(nil), text...)
	if _, err := io.WriteString(w.w, b.String()); err != nil {
		return 0, err
	}
	return len(data), nil
}
