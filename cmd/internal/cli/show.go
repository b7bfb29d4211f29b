package cli

import (
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"watari/cmd/internal/output"
)

// Show writes a message in the requested format. table writes the form for people.
func (e *Env) Show(message proto.Message, table func(w io.Writer)) error {
	return output.Write(e.Out, e.Output, message, table)
}

// Done shows the result of a change: a sentence on standard error for people, the object for programs.
func (e *Env) Done(object proto.Message, format string, args ...any) error {
	return e.Show(object, func(io.Writer) { e.Notef(format, args...) })
}

// ShowList writes messages in the requested format. table writes the form for people.
func ShowList[T proto.Message](e *Env, messages []T, table func(w io.Writer)) error {
	return output.WriteList(e.Out, e.Output, messages, table)
}

// Find returns the object of a kind with that name. list fetches the objects with that name.
func Find[T any](kind, name string, list func() ([]T, error)) (found T, err error) {
	if err := CheckName(kind, name); err != nil {
		return found, err
	}
	all, err := list()
	if err != nil {
		return found, fmt.Errorf("show %s %s: %w", kind, name, err)
	}
	if len(all) == 0 {
		return found, fmt.Errorf("there is no %s %s; `watari %s list` shows all", kind, name, kind)
	}
	return all[0], nil
}

// CheckOutput refuses an invalid value of --output.
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
