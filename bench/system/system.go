// Package system starts a manager and a lab for benchmarks, with the commands that a user would type.
package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// System is a manager and a lab: two sites with two hosts each (a1, a2, b1, b2), or one site with two hosts, which may be
// whole hosts.
type System struct {
	// Image is the name of an image with Open MPI and LAMMPS.
	Image      string
	bin, state string
	lab        string
	patience   time.Duration // time limit of a command
}

const listen = "0.0.0.0:17171"

// Up starts everything. wan is the shape of the WAN between the sites, "" for an unshaped one. Up removes leftovers of
// an earlier run first. When a signal ends the program, everything is removed.
func Up(name, wan string) (*System, error) {
	lab := []string{"--sites", "2", "--hosts", "2"}
	if wan != "" {
		lab = append(lab, "--wan", wan)
	}
	return up(name, 10*time.Minute, lab)
}

// UpSite is like Up with a lab of one site with the hosts a1 and a2.
func UpSite(name string) (*System, error) {
	return up(name, 10*time.Minute, []string{"--sites", "1", "--hosts", "2"})
}

// UpHosts is like Up with a lab of one site, whose hosts a1, a2, ... are limited to parts of a processor, as in a1=0.5,a2=0.5.
func UpHosts(name string, hosts int, cpus string) (*System, error) {
	return up(name, 30*time.Minute, []string{"--sites", "1", "--hosts", strconv.Itoa(hosts), "--cpus", cpus})
}

// UpWhole is like Up with a lab of one site, whose hosts a1 and a2 are whole hosts with guests under KVM.
func UpWhole(name string) (*System, error) {
	return up(name, time.Hour, []string{"--sites", "1", "--hosts", "2", "--whole", "--cells", "1"})
}

func up(name string, patience time.Duration, lab []string) (*System, error) {
	bin, err := filepath.Abs("build/bin")
	if err != nil {
		return nil, err
	}
	s := &System{Image: "mpi", bin: bin, state: "/var/tmp/watari-" + name, lab: name, patience: patience}
	s.Down()
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stopped
		fmt.Fprintln(os.Stderr, "stopped; removing what was brought up")
		s.Down()
		os.Exit(130)
	}()
	if err := os.MkdirAll(s.state, 0o700); err != nil {
		return nil, err
	}
	still := filepath.Join(s.state, "still.yaml")
	if err := os.WriteFile(still, []byte("# Nothing moves by itself.\nmaintenance: {}\n"), 0o600); err != nil {
		return nil, err
	}
	for _, step := range [][]string{
		{"up", "--no-agent", "--state", s.state, "--listen", listen}, {"policy", "apply", still}, append([]string{"lab", "up", "--name", s.lab}, lab...),
		{"image", "build", s.Image, "--packages", "openmpi-bin,lammps"},
	} {
		fmt.Println("== watari", strings.Join(step, " "))
		if _, err := s.Watari(step...); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Sharing restarts the manager with or without sharing of images and templates between hosts.
func (s *System) Sharing(on bool) error {
	if _, err := s.Watari("down", "--state", s.state); err != nil {
		return err
	}
	_, err := s.Watari("up", "--no-agent", "--state", s.state, "--listen", listen, fmt.Sprintf("--no-sharing=%v", !on))
	return err
}

// NewLab replaces the lab by a new lab of two sites, whose hosts have no images and no templates.
func (s *System) NewLab(hostsOfASite int, wan string) error {
	if _, err := s.Watari("lab", "down", "--name", s.lab); err != nil {
		return err
	}
	_, err := s.Watari("lab", "up", "--name", s.lab, "--sites", "2", "--hosts", fmt.Sprint(hostsOfASite), "--wan", wan)
	return err
}

// OverWAN returns how many bytes a site of the lab has received over the WAN since the lab was started.
func (s *System) OverWAN(site string) (uint64, error) {
	out, err := exec.Command("nsenter", "--net=/run/watari/lab/"+s.lab+"/ns/router-"+site, "cat", "/proc/net/dev").Output()
	if err != nil {
		return 0, fmt.Errorf("bytes that site %s got over the WAN: %w", site, err)
	}
	for line := range strings.Lines(string(out)) {
		if name, rest, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "wan" {
			return strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("site %s has no WAN", site)
}

// Down removes everything.
func (s *System) Down() {
	s.Watari("lab", "down", "--name", s.lab)
	s.Watari("down", "--state", s.state)
	os.RemoveAll(s.state)
}

// Command returns a watari command that is not started yet.
func (s *System) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(s.bin, "watari"), args...)
	c.Env = append(os.Environ(), "WATARI_CONFIG="+filepath.Join(s.state, "admin.json"))
	return c
}

// Watari runs a command and returns its standard output. The time limit is ten minutes, or an hour with whole hosts.
func (s *System) Watari(args ...string) (string, error) {
	return s.fed(nil, args...)
}

// fed runs a command with a standard input.
func (s *System) fed(in io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()
	c := s.Command(ctx, args...)
	c.Stdin = in
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		events, _ := s.Command(ctx, "events", "--last", "20").CombinedOutput() // the system is removed before anybody can ask
		return string(out), fmt.Errorf("watari %s: %w\n%s%sThe last events:\n%s", strings.Join(args, " "), err, out, stderr.String(), events)
	}
	return string(out), nil
}

// JSON runs a command with -o json and decodes its standard output.
func (s *System) JSON(v any, args ...string) error {
	out, err := s.Watari(append([]string{"-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return fmt.Errorf("watari %s: %w in %q", strings.Join(args, " "), err, out)
	}
	return nil
}

// WriteTo writes a file on a host.
func (s *System) WriteTo(host string, content io.Reader, path string) error {
	_, err := s.fed(content, "lab", "exec", "--name", s.lab, host, "--", "sh", "-ec", "mkdir -p "+filepath.Dir(path)+"; cat > "+path)
	return err
}

// OnHost runs a shell command in a host of the lab.
func (s *System) OnHost(host, command string) (string, error) {
	return s.Watari("lab", "exec", "--name", s.lab, host, "--", "sh", "-ec", command)
}
