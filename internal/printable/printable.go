// Package printable makes text from a guest safe for a terminal or a message. It replaces escape sequences, control
// characters, invalid UTF-8 and invisible characters by their escaped forms, such as `\x1b`.
package printable

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns s on one line of at most limit characters. Applying Line to its own result does not change it.
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

// cut returns the first n characters of s.
func cut(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// Lines applies Line to each line of s.
func Lines(s string, limit int) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Line(strings.TrimSuffix(lines[i], "\r"), limit)
	}
	return strings.Join(lines, "\n")
}

// Text returns s with newlines and tabs as they are. Applying Text to its own result does not change it.
func Text(s string) string {
	plain := func(r rune) bool { return r == '\n' || r == '\t' || r != utf8.RuneError && unicode.IsPrint(r) }
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if plain(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(escape(r, s[:size]))
		}
		s = s[size:]
	}
	return b.String()
}

// LastLines returns the last n lines of a text that are not blank, each as Line returns it.
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

// Writer returns a writer that escapes its input and writes it to w. It keeps newlines and tabs, and drops a carriage
// return before a newline.
func Writer(w io.Writer) io.Writer { return &writer{w: w} }

type writer struct {
	w    io.Writer
	rest []byte // an incomplete character or a carriage return at the end of the last write
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
