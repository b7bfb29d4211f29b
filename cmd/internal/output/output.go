// Package output writes the output of commands: tables for people, and JSON and YAML in protobuf's JSON mapping for
// programs. It escapes control characters: hosts, guests and other users choose many of the texts.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"watari/internal/printable"
)

// The formats of --output.
const (
	FormatTable = "table"
	FormatJSON  = "json"
	FormatYAML  = "yaml"
)

// Formats are the values of --output.
var Formats = []string{FormatTable, FormatJSON, FormatYAML}

// Write writes a message in a format. table writes the form for people.
func Write(w io.Writer, format string, message proto.Message, table func(w io.Writer)) error {
	return write(w, format, func() ([]byte, error) { return JSON(message) }, table)
}

// WriteList writes messages in a format, for programs as an array. table writes the form for people.
func WriteList[T proto.Message](w io.Writer, format string, messages []T, table func(w io.Writer)) error {
	return write(w, format, func() ([]byte, error) { return jsonList(messages) }, table)
}

func write(w io.Writer, format string, text func() ([]byte, error), table func(w io.Writer)) error {
	switch format {
	case FormatTable, "":
		table(printable.Writer(w))
		return nil
	case FormatJSON, FormatYAML:
		text, err := text()
		if err != nil {
			return err
		}
		if format == FormatJSON {
			_, err = fmt.Fprintf(w, "%s\n", text)
			return err
		}
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	return fmt.Errorf("output format %q: use %s", format, strings.Join(Formats, ", "))
}

// JSON returns a message in protobuf's JSON mapping: field names in lowerCamelCase, including fields that are zero,
// 64-bit numbers as strings, times as RFC 3339.
func JSON(message proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(message)
	if err != nil {
		return nil, err
	}
	var even bytes.Buffer // protojson varies its whitespace on purpose
	if err := json.Indent(&even, text, "", "  "); err != nil {
		return nil, err
	}
	return plain(even.Bytes()), nil
}

// plain replaces characters that are not printable by their escaped forms. JSON permits them only in strings, apart from the
// newline. protojson escapes only those below the space.
func plain(text []byte) []byte {
	if bytes.IndexFunc(text, unprintable) < 0 {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		if !unprintable(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.Bytes()
}

func unprintable(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }

func jsonList[T proto.Message](messages []T) ([]byte, error) {
	all := make([]json.RawMessage, 0, len(messages))
	for _, message := range messages {
		text, err := JSON(message)
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return json.MarshalIndent(all, "", "  ")
}

// JSONLine returns a message as JSON on one line.
func JSONLine(message proto.Message) ([]byte, error) {
	text, err := JSON(message)
	if err != nil {
		return nil, err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil {
		return nil, err
	}
	return line.Bytes(), nil
}

// Table aligns columns.
type Table struct {
	rows   [][]string
	header []string
}

// NewTable returns a table with a header.
func NewTable(header ...string) *Table { return &Table{header: header} }

// Row adds a row; an empty cell is shown as "-".
func (t *Table) Row(cells ...string) {
	for i, cell := range cells {
		cells[i] = printable.Text(strings.Join(strings.Fields(cell), " "))
		if cells[i] == "" {
			cells[i] = "-"
		}
	}
	t.rows = append(t.rows, cells)
}

// Write writes the table without trailing spaces. It leaves out a last column without values.
func (t *Table) Write(w io.Writer) {
	columns := len(t.header)
	if columns > 1 && len(t.rows) > 0 && !t.used(columns-1) {
		columns--
	}
	var text bytes.Buffer
	tabs := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.header}, t.rows...) {
		fmt.Fprintln(tabs, strings.Join(row[:min(columns, len(row))], "\t"))
	}
	tabs.Flush()
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
}

func (t *Table) used(column int) bool {
	for _, row := range t.rows {
		if column < len(row) && row[column] != "-" {
			return true
		}
	}
	return false
}

// Fields aligns names and values, for the show commands. It leaves out pairs with an empty value.
func Fields(w io.Writer, pairs ...[2]string) {
	width := 0
	for _, pair := range pairs {
		if pair[1] != "" {
			width = max(width, len(pair[0])+1)
		}
	}
	for _, pair := range pairs {
		if pair[1] != "" {
			value := strings.ReplaceAll(strings.TrimRight(pair[1], "\n"), "\n", "\n"+strings.Repeat(" ", width+1))
			fmt.Fprintf(w, "%-*s %s\n", width, pair[0]+":", value)
		}
	}
}
