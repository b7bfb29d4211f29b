package cli

import (
	"io"

	"google.golang.org/protobuf/proto"

	"watari/cmd/internal/output"
)

// Show writes a message in the format asked for; table writes the form for people.
func (e *Env) Show(message proto.Message, table func(w io.Writer)) error {
	return output.Write(e.Out, e.Output, message, table)
}

// ShowList writes messages in the format asked for; table writes the form for people.
func ShowList[T proto.Message](e *Env, messages []T, table func(w io.Writer)) error {
	return output.WriteList(e.Out, e.Output, messages, table)
}

// CheckOutput refuses an --output that is none.
func (e *Env) CheckOutput() error {
	if e.Output == "" {
		e.Output = output.FormatTable
	}
	for _, format := range output.Formats {
		if e.Output == format {
			return nil
		}
	}
	return Usagef("--output %q: use table, json or yaml", e.Output)
}
