package policy

// file.go - reads a policy from a file, and shows the line in which the manager has found an error.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"

	"watari/cmd/internal/cli"
)

// sizeLimit is the largest text that is sent to a manager, in bytes.
const sizeLimit = 64 << 10

// file is a policy that was read from a file or from standard input.
type file struct{ name, text string }

// readFile reads a policy from a file; "-" is standard input. It refuses text that cannot be a policy, so that the message
// names the file.
func readFile(ctx context.Context, env *cli.Env, path string) (file, error) {
	if path == "-" {
		return readFrom(ctx, "standard input", env.In)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return file{}, cli.Usagef("%s: there is no such file; give a YAML file, or - for standard input", path)
	case err != nil:
		return file{}, fmt.Errorf("read the policy: %w", err)
	case info.IsDir():
		return file{}, cli.Usagef("%s is a directory; give a YAML file, or - for standard input", path)
	}
	opened, err := os.Open(path)
	if err != nil {
		return file{}, fmt.Errorf("read the policy: %w", err)
	}
	defer opened.Close()
	return readFrom(ctx, path, opened)
}

// readFrom reads a policy. It returns at the end of ctx even if the reader blocks, as a terminal does.
func readFrom(ctx context.Context, name string, r io.Reader) (file, error) {
	type result struct {
		text []byte
		err  error
	}
	read := make(chan result, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(r, sizeLimit+1))
		read <- result{text, err}
	}()
	select {
	case <-ctx.Done():
		return file{}, ctx.Err()
	case got := <-read:
		if got.err != nil {
			return file{}, fmt.Errorf("read the policy from %s: %w", name, got.err)
		}
		return file{name, string(got.text)}, check(name, string(got.text))
	}
}

// check refuses a text that certainly is no policy.
func check(name, text string) error {
	switch {
	case text == "":
		return fmt.Errorf("%s is empty; `watari policy show --default` prints a policy to begin with", name)
	case len(text) > sizeLimit:
		return fmt.Errorf("%s has more than 64 KiB, the most that a policy can have; give a YAML file", name)
	}
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRuneInString(text[at:])
		if r == utf8.RuneError && size == 1 || unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' {
			return fmt.Errorf("%s is not a text: byte %d is 0x%02x; give a YAML file in UTF-8", name, at+1, text[at])
		}
		at += size
	}
	return nil
}

// atLine matches the beginning of a manager's message about a line of a policy.
var atLine = regexp.MustCompile(`(?m)^line ([0-9]+)(?:, column ([0-9]+))?: `)

// refusal returns why the manager refuses the file, with the file's name before the line: "policy.yaml:7: ...". It begins
// with act if the reason does not name a line.
func (f file) refusal(act string, err error) error {
	var failed *connect.Error
	if !errors.As(err, &failed) || !connect.IsWireError(failed) {
		return fmt.Errorf("%s %s: %w", act, f.name, err)
	}
	message := failed.Message()
	if found := atLine.FindStringIndex(message); found == nil || found[0] != 0 {
		return fmt.Errorf("%s %s: %w", act, f.name, err)
	}
	return errors.New(atLine.ReplaceAllStringFunc(message, func(begin string) string {
		place := atLine.FindStringSubmatch(begin)
		if place[2] != "" {
			return f.name + ":" + place[1] + ":" + place[2] + ": "
		}
		return f.name + ":" + place[1] + ": "
	}))
}
