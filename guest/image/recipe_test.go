package image

// recipe_test.go - which recipes are refused, and which are equal.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testRecipe returns a recipe whose files exist.
func testRecipe(t *testing.T) Recipe {
	t.Helper()
	agent := filepath.Join(t.TempDir(), "watari-guest")
	for path, text := range map[string]string{agent: "\x7fELF guest agent", launcherOf(agent): "\x7fELF launchers' program"} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Recipe{GuestAgent: agent, Cache: t.TempDir()}
}

func TestRecipeIsRefusedWithTheReason(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nothing")
	for name, test := range map[string]struct {
		change func(*Recipe)
		want   string
	}{
		"no source":         {func(*Recipe) {}, "exactly one of"},
		"two sources":       {func(r *Recipe) { r.Packages, r.Tree = []string{"bash"}, t.TempDir() }, "exactly one of"},
		"option as package": {func(r *Recipe) { r.Packages = []string{"--allow-unauthenticated"} }, "not the name of a Debian package"},
		"shell in package":  {func(r *Recipe) { r.Packages = []string{"bash;reboot"} }, "not the name of a Debian package"},
		"missing tree":      {func(r *Recipe) { r.Tree = missing }, "no such file"},
		"file as tree":      {func(r *Recipe) { r.Tree = r.GuestAgent }, "not a directory"},
		"missing archive":   {func(r *Recipe) { r.OCI = missing }, "no such file"},
		"folder as archive": {func(r *Recipe) { r.OCI = t.TempDir() }, "is not a file"},
		"missing addition":  {func(r *Recipe) { r.Tree, r.Additions = t.TempDir(), []Addition{{missing, "/x"}} }, "no such file"},
		"root as addition":  {func(r *Recipe) { r.Tree, r.Additions = t.TempDir(), []Addition{{"/etc", "/"}, {"/", "/.."}} }, "not an absolute path below the root"},
		"missing agent":     {func(r *Recipe) { r.Tree, r.GuestAgent = t.TempDir(), missing }, "guest agent"},
		"missing launcher":  {func(r *Recipe) { r.Tree = t.TempDir(); os.Remove(launcherOf(r.GuestAgent)) }, "launchers' program"},
		"missing PM":        {func(r *Recipe) { r.Tree, r.PM = t.TempDir(), missing }, "PM's provider"},
		"odd kernel":        {func(r *Recipe) { r.Tree, r.KernelPackage = t.TempDir(), "-o" }, "not the name of a Debian package with a kernel"},
		"broken arguments":  {func(r *Recipe) { r.Tree, r.KernelArgs = t.TempDir(), "a\nb" }, "line break"},
	} {
		t.Run(name, func(t *testing.T) {
			recipe := testRecipe(t)
			test.change(&recipe)
			if err := recipe.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
	for _, name := range []string{"openmpi-bin", "g++-12", "libc6:amd64", "lammps=20220106.git7586adbb6a+ds1-2+b2", "mpich/bookworm-backports"} {
		recipe := testRecipe(t)
		recipe.Packages = []string{name}
		if err := recipe.Validate(); err != nil {
			t.Errorf("package %s: %v", name, err)
		}
	}
}

func TestAdditionIsRead(t *testing.T) {
	for text, want := range map[string]string{"a:/b": "b", "a:b:/c/d": "c/d", "dir/file:/opt/": "opt/file", "x:/a/../../b": "b"} {
		addition, err := ParseAddition(text)
		if err != nil || addition.target() != want {
			t.Errorf("%s: target %q, %v, want %q", text, addition.target(), err, want)
		}
	}
	for _, text := range []string{"a", "a:", ":/b", "a:b", ""} {
		if _, err := ParseAddition(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestRootKeyTellsRecipesApart(t *testing.T) {
	key := func(r Recipe) string {
		t.Helper()
		k, err := rootKey(t.Context(), r.withDefaults(), &sources{})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	recipe := testRecipe(t)
	recipe.Packages = []string{"lammps", "openmpi-bin"}
	first := key(recipe)
	recipe.Packages = []string{"openmpi-bin", "lammps", "lammps"}
	if key(recipe) != first {
		t.Error("the order of packages changes the key")
	}
	recipe.Packages = []string{"openmpi-bin"}
	if key(recipe) == first {
		t.Error("another list of packages has the same key")
	}
	before := key(recipe)
	recipe.Additions = []Addition{{recipe.GuestAgent, "/usr/bin/x"}}
	with := key(recipe)
	if with == before {
		t.Error("an addition does not change the key")
	}
	if err := os.WriteFile(recipe.GuestAgent, []byte("\x7fELF guest agenT"), 0o755); err != nil {
		t.Fatal(err)
	}
	if key(recipe) == with {
		t.Error("another content of an addition has the same key")
	}
}

func TestTreeKeySeesContentModeAndNames(t *testing.T) {
	tree := t.TempDir()
	file := filepath.Join(tree, "a\nb \xff")
	sum := func() string {
		t.Helper()
		s, err := treeSum(t.Context(), tree)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	seen := map[string]string{sum(): "empty"}
	step := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if s := sum(); seen[s] != "" {
			t.Errorf("%s: same as %s", what, seen[s])
		} else {
			seen[s] = what
		}
	}
	step("new file", os.WriteFile(file, []byte("1"), 0o600))
	step("content", os.WriteFile(file, []byte("2"), 0o600))
	step("mode", os.Chmod(file, 0o4755))
	step("name", os.Rename(file, filepath.Join(tree, "-b")))
	step("link", os.Symlink("x", filepath.Join(tree, "link")))
}

func TestSourceTellsVersions(t *testing.T) {
	got := versions([]string{"b=2-1", "b-dev", "c:amd64", "virtual"}, []string{"a 1", "b 2-1", "b-dev 3", "c 4"})
	if want := "b 2-1, b-dev 3, c 4, virtual"; strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
