// The sources of a machine's Debian packages: the mirror that this machine's apt uses.

package machine

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// keyring holds the keys of all Debian releases.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Sources returns apt's source lines for a suite: this machine's Debian sources, with the suite replaced.
func Sources(ctx context.Context, suite string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)",
		"Created-By: Packages", "Origin: Debian").Output()
	if err != nil {
		return nil, fmt.Errorf("ask apt for this machine's sources: %w", err)
	}
	lines := sourcesFor(suite, string(out))
	if len(lines) == 0 {
		return nil, errNoSource
	}
	return lines, nil
}

// sourcesFor rewrites apt's list of its sources ("site release component" in each line). It leaves out backports and
// all components except main.
func sourcesFor(suite, targets string) []string {
	var lines []string
	for target := range strings.Lines(targets) {
		fields := strings.Fields(target)
		if len(fields) != 3 || fields[2] != "main" {
			continue
		}
		_, pocket, found := strings.Cut(fields[1], "-")
		if found && pocket != "updates" && pocket != "security" {
			continue
		}
		release := suite
		if found {
			release += "-" + pocket
		}
		lines = append(lines, fmt.Sprintf("deb [signed-by=%s] %s %s main", keyring, fields[0], release))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
