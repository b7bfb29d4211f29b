// Package manual generates the man pages of watari from the help texts of its commands.
package manual

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"watari/cmd/watari/root"
)

// Pages returns the man pages by file name, such as "watari-run.1". They depend only on the commands.
func Pages() (map[string][]byte, error) {
	pages := map[string][]byte{}
	return pages, add(pages, root.Reference())
}

func add(pages map[string][]byte, command *cobra.Command) error {
	if command.Hidden || command.Name() == "help" || command.Name() == "completion" {
		return nil
	}
	title := strings.ReplaceAll(command.CommandPath(), " ", "-")
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) // fixed, so that a page changes only with its command
	header := &doc.GenManHeader{Title: strings.ToUpper(title), Section: "1", Date: &day, Source: "Watari", Manual: "Watari"}
	var text bytes.Buffer
	if err := doc.GenMan(command, header, &text); err != nil {
		return fmt.Errorf("man page of %s: %w", command.CommandPath(), err)
	}
	pages[title+".1"] = text.Bytes()
	for _, sub := range command.Commands() {
		if err := add(pages, sub); err != nil {
			return err
		}
	}
	return nil
}

// Write makes these pages the only man pages of watari's commands in a directory.
func Write(folder string, pages map[string][]byte) error {
	old, err := filepath.Glob(filepath.Join(folder, "watari*.1"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if pages[filepath.Base(path)] == nil {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
