package rules

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"watari/cmd/watari/root"
	"watari/internal/manual"
)

// need skips a test if a program is missing, or fails it where the program should be installed.
func need(t *testing.T, program, where string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is missing (%s)", program, where)
	}
	t.Skipf("%s is missing (%s)", program, where)
}

func TestGeneratedAPIIsThatOfTheProtobufFiles(t *testing.T) {
	need(t, "protoc", "Debian package protobuf-compiler; scripts/setup.sh installs it")
	folder := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		command := exec.Command(name, args...)
		command.Dir = top
		command.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	run("go", "build", "-o", folder, "google.golang.org/protobuf/cmd/protoc-gen-go", "connectrpc.com/connect/cmd/protoc-gen-connect-go")
	files, err := filepath.Glob(top + "/api/watari/v1/*.proto")
	if err != nil || len(files) == 0 {
		t.Fatalf("no protobuf files: %v", err)
	}
	args := []string{"-I", "api", "--go_out=" + folder, "--go_opt=module=watari", "--connect-go_out=" + folder, "--connect-go_opt=module=watari"}
	for _, file := range files {
		args = append(args, strings.TrimPrefix(file, top+"/"))
	}
	run("protoc", args...)
	compareFolders(t, filepath.Join(folder, "api"), filepath.Join(top, "api"), "run make generate")
}

// compareFolders checks that two directories have the same files.
func compareFolders(t *testing.T, made, kept, advice string) {
	t.Helper()
	err := filepath.WalkDir(made, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, made)
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if got, err := os.ReadFile(kept + name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s%s is not what is generated: %s", kept, name, advice)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestManPagesAreThoseOfTheCommands(t *testing.T) {
	pages, err := manual.Pages()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range pages {
		if got, err := os.ReadFile(filepath.Join(top, "man", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("man/%s is not what is generated: run make docs", name)
		}
	}
	kept, _ := filepath.Glob(top + "/man/watari*.1")
	for _, path := range kept {
		if pages[filepath.Base(path)] == nil {
			t.Errorf("man/%s is of no command: run make docs", filepath.Base(path))
		}
	}
}

func TestCommandsExplainThemselves(t *testing.T) {
	visit(root.Reference(), func(command *cobra.Command) {
		path := command.CommandPath()
		if command.Short == "" || strings.HasSuffix(command.Short, ".") {
			t.Errorf("%s: Short is %q; one line without a full stop", path, command.Short)
		}
		if command.Long == "" && command.Example == "" {
			t.Errorf("%s has neither Long nor Example", path)
		}
		command.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			if strings.Contains(flag.Usage, "`") {
				t.Errorf("%s --%s: %q: what stands between backquotes is shown as the value's name", path, flag.Name, flag.Usage)
			}
		})
		for line := range strings.Lines(command.Example) {
			if !strings.HasPrefix(line, "  ") || !strings.Contains(line, "watari ") {
				t.Errorf("%s: example %q: begin with two blanks, show a whole command", path, line)
			}
		}
	})
}

func visit(command *cobra.Command, see func(*cobra.Command)) {
	if command.Hidden {
		return
	}
	see(command)
	for _, sub := range command.Commands() {
		visit(sub, see)
	}
}
