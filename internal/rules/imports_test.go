package rules

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// packages lists the repository's packages, with the imports and all dependencies of each.
func packages(t *testing.T) (imports, deps map[string][]string) {
	t.Helper()
	command := exec.Command("go", "list", "-f", `{{.ImportPath}}|{{join .Imports " "}}|{{join .Deps " "}}`, "./...")
	command.Dir = top
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	imports, deps = map[string][]string{}, map[string][]string{}
	for line := range strings.Lines(string(out)) {
		parts := strings.Split(strings.TrimSpace(line), "|")
		imports[parts[0]], deps[parts[0]] = strings.Fields(parts[1]), strings.Fields(parts[2])
	}
	return imports, deps
}

// under reports whether a package is at or below a path.
func under(name, path string) bool { return name == path || strings.HasPrefix(name, path+"/") }

func underAny(name string, paths []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool { return under(name, path) })
}

// deciders are pure packages: no files, no network, no processes, no clock.
var deciders = []string{"watari/placement", "watari/rebalance", "watari/locality", "watari/migration", "watari/checkpoint", "watari/sharing", "watari/compatibility",
	"watari/policy", "watari/core", "watari/core/lifecycle", "watari/agent/machine", "watari/agent/domain"}

// pureImports are the packages that deciders may import in addition to each other.
var pureImports = []string{"cmp", "crypto/sha256", "encoding/binary", "encoding/hex", "errors", "fmt", "iter", "maps", "math", "regexp", "slices", "sort", "strconv", "strings", "time", "unicode", "net/netip", "watari/internal/printable", "watari/internal/protocol", "watari/internal/mounts",
	"github.com/dustin/go-humanize", "watari/api/watariv1", "google.golang.org/protobuf",
	"embed", "path", "unicode/utf8", "cel.dev/cel-go/cel", "cel.dev/cel-go/common/types", "github.com/goccy/go-yaml"}

// forbidden lists packages that some packages must not depend on, even indirectly.
var forbidden = []struct {
	who, why string
	what     []string
}{
	{"watari/cmd/watari", "the command line is pure Go", []string{"libvirt.org/go/libvirt", "watari/agent"}},
	{"watari/manager", "the manager knows no hypervisor", []string{"libvirt.org/go/libvirt", "watari/agent", "watari/overlay", "watari/cmd"}},
	{"watari/agent", "an agent knows its end of the connection, not the manager", []string{"go.etcd.io", "watari/manager", "watari/cmd"}},
	{"watari/cmd/watari-agent", "an agent knows its end of the connection, not the manager", []string{"go.etcd.io", "watari/manager"}},
	{"watari/hostlink", "both ends of the connection use it", []string{"libvirt.org", "go.etcd.io", "watari/manager", "watari/agent", "watari/guest", "watari/cmd"}},
	{"watari/cmd/watari-guest", "a guest knows neither hosts nor managers", []string{"libvirt.org", "go.etcd.io", "watari/manager", "watari/agent", "watari/overlay", "watari/lab"}},
	{"watari/guest", "a guest knows neither hosts nor managers", []string{"libvirt.org", "go.etcd.io", "watari/manager", "watari/agent", "watari/overlay", "watari/lab", "watari/cmd"}},
	{"watari/overlay", "the overlay knows addresses, not guests' machines", []string{"libvirt.org", "go.etcd.io", "watari/manager", "watari/agent", "watari/cmd"}},
	{"watari/lab", "the lab starts programs and links none of them", []string{"libvirt.org", "go.etcd.io", "watari/manager", "watari/agent", "watari/cmd"}},
	{"watari/ca", "the authority is used everywhere", []string{"libvirt.org", "go.etcd.io", "watari/manager", "watari/agent", "watari/guest", "watari/cmd"}},
}

func TestImports(t *testing.T) {
	imports, deps := packages(t)
	for name := range imports {
		if underAny(name, deciders) {
			for _, other := range imports[name] {
				if !underAny(other, pureImports) && !underAny(other, deciders) {
					t.Errorf("%s decides and does nothing else, but imports %s", name, other)
				}
			}
		}
		for _, rule := range forbidden {
			if !under(name, rule.who) {
				continue
			}
			for _, other := range deps[name] {
				if underAny(other, rule.what) && !underAny(other, deciders) {
					t.Errorf("%s depends on %s: %s", name, other, rule.why)
				}
			}
		}
		if slices.Contains(imports[name], "libvirt.org/go/libvirt") && !under(name, "watari/agent") {
			t.Errorf("%s imports libvirt: only the agent does", name)
		}
	}
}
