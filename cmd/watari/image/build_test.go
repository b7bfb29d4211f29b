package image

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"watari/cmd/internal/cli"
	"watari/guest/image"
)

func TestBuildProgressIsALineAStepWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	show := newBuildProgress(&out)
	show.update(image.Progress{Step: "install packages"})
	for i := range int64(100) {
		show.update(image.Progress{Step: "install packages", Done: i + 1, Total: 100, Unit: "packages"})
	}
	show.update(image.Progress{Step: "pack the root file system"})
	show.end()
	want := "install packages\ninstall packages: 1 %  1 of 100 packages\npack the root file system\n"
	if got := out.String(); got != want {
		t.Errorf("shown:\n%swant:\n%s", got, want)
	}
}

func TestBarIsFullAtTheEnd(t *testing.T) {
	if got := amount(image.Progress{Done: 7, Total: 7, Unit: "packages"}, true); !strings.Contains(got, "["+strings.Repeat("=", 24)+"] 100 %  7 of 7 packages") {
		t.Errorf("got %q", got)
	}
}

// mmdebstrap runs the packages' scripts as root. From a tree or an archive, no script runs.
func TestABuildFromPackagesSaysThatTheirScriptsRunAsRoot(t *testing.T) {
	for source, scripts := range map[string]bool{"packages": true, "tree": false, "oci": false} {
		var said bytes.Buffer
		command := BuildCommand(&cli.Env{Out: io.Discard, Err: &said})
		command.SilenceErrors, command.SilenceUsage = true, true
		// There is nothing of this name, so nothing is built.
		command.SetArgs([]string{"mpi", "--" + source, "./Nothing", "--guest-agent", "none", "--cache", t.TempDir(), "--output-dir", t.TempDir()})
		if err := command.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%s: built", source)
		}
		if strings.Contains(said.String(), "the packages' scripts run as this machine's root") != scripts {
			t.Errorf("%s: the build says %q", source, said.String())
		}
	}
}

func TestPMIsTakenFromBesideThisProgramUnlessSaidOtherwise(t *testing.T) {
	folder := t.TempDir()
	agent, pm := filepath.Join(folder, "watari-guest"), filepath.Join(folder, "libpm-fi.so")
	recipe := image.Recipe{}
	if err := findBeside(&recipe, folder); err == nil || !strings.Contains(err.Error(), "--guest-agent") {
		t.Errorf("no guest agent: %v", err)
	}
	for _, path := range []string{agent, pm} {
		recipe = image.Recipe{}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := findBeside(&recipe, folder); err != nil || recipe.GuestAgent != agent || recipe.PM != "" && path == agent {
			t.Errorf("%v, %+v", err, recipe)
		}
	}
	if recipe.PM != pm {
		t.Errorf("PM: %q", recipe.PM)
	}
	for given, want := range map[string]string{"none": "", "/elsewhere/libpm-fi.so": "/elsewhere/libpm-fi.so"} {
		recipe = image.Recipe{PM: given}
		if err := findBeside(&recipe, folder); err != nil || recipe.PM != want {
			t.Errorf("%s: %v, %q", given, err, recipe.PM)
		}
	}
}

func TestInstalledProgramsAreTakenFromLibexec(t *testing.T) {
	top := t.TempDir()
	libexec := filepath.Join(top, "libexec", "watari")
	if err := os.MkdirAll(libexec, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"watari-guest", image.Provider} {
		if err := os.WriteFile(filepath.Join(libexec, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	recipe := image.Recipe{}
	err := findBeside(&recipe, filepath.Join(top, "bin"))
	if err != nil || filepath.Dir(recipe.GuestAgent) != libexec || filepath.Dir(recipe.PM) != libexec {
		t.Errorf("%v, %+v", err, recipe)
	}
}
