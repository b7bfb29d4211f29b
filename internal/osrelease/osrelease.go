// Package osrelease returns the Debian release of this machine; see os-release(5).
package osrelease

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Codename returns the release's name ("bookworm").
func Codename() (string, error) {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("find this machine's Debian release: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok && name != "" {
			return strings.Trim(name, `"`), nil
		}
	}
	return "", errors.New("/etc/os-release names no VERSION_CODENAME")
}
