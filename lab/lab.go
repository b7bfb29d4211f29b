// Package lab runs several sites with several hosts each on one machine. A host is either a set of namespaces with its
// own libvirt daemon and agent, or a virtual machine (a whole host). Every site is a LAN. A WAN joins the sites; it can
// be shaped and cut.
//
// All names of a lab's parts derive from the lab's name, and parts without such a name are found by it. So a lab that is
// partly made or removed after a crash can always be completed or removed. See docs/guide/lab.md for what a host sees.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"watari/lab/machine"
)

var (
	// ErrNotFound means that there is no lab of that name.
	ErrNotFound = errors.New("no such lab")
	// ErrShape means that a lab of that name exists with another number of sites or hosts.
	ErrShape = errors.New("lab exists with a different shape")
)

// DefaultManagerPort is the default port of a manager.
const DefaultManagerPort = "7070"

// Options describes the lab that Up makes.
type Options struct {
	Name  string // lower-case letters, digits and dashes, at most 24 characters
	Sites int    // 1 to MaxSites
	Hosts int    // on each site, 1 to MaxHosts
	WAN   *WAN   // nil: unshaped for a new lab, unchanged for one that exists
	// CPUs limits the CPU time of each named host, in CPUs (0.5 is half of one CPU); nil: unchanged.
	CPUs map[string]float64

	// Whole says which hosts are whole hosts; nil: none in a new lab, unchanged for one that exists.
	Whole *Whole

	// Agent starts an agent on each host. A host that has not joined yet needs a token, from Tokens (one for each host,
	// in the order of Hosts) or from TokenFunc.
	Agent   bool
	Lent    bool   // hosts that join are lent out: policies consider their owners
	Manager string // URL that agents dial; empty: the lab's root end with the port that TokenFunc gives
	Tokens  []string
	// TokenFunc makes a join token for a host of that site and returns the manager's port, as "7070" or ":7070".
	TokenFunc func(ctx context.Context, site string) (token, managerURLPortOnly string, err error)
	// Admit, if not nil, is called for each host before its agent gets a token or is started. joined tells whether the
	// agent already has a certificate of some manager. An error ends Up.
	Admit func(ctx context.Context, host Host, joined bool) error
	// AgentBinary is the path of watari-agent; empty: the one in the directory of Executable.
	AgentBinary string

	// Executable is the program that is run as each host's first process and as the WAN's link process. It must call
	// Helper first. Empty: the running program.
	Executable string
	// Progress, if not nil, is called with one line for each step, without a newline.
	Progress func(line string)
}

// Lab is a lab on this machine, up or partly up.
type Lab struct {
	dir        string // persistent state
	run        string // directory of the namespaces
	executable string
	progress   func(string)
	state      state
	templates  map[machine.Spec]machine.Template // for hosts that Up starts for the first time
}

// Up makes a lab, or completes one that exists in part. It may be interrupted by ctx or by a crash at any point and
// then called again. It returns when the libvirt daemon of every host answers and, with Agent, every agent has joined.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	l, unlock, err := openOrCreate(ctx, o)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := l.bringUp(ctx, o); err != nil {
		return nil, fmt.Errorf("bring up lab %s: %w", o.Name, err)
	}
	return l, nil
}

func (l *Lab) bringUp(ctx context.Context, o Options) error {
	if err := l.setUpNetwork(ctx); err != nil {
		return err
	}
	if err := l.applyWAN(ctx); err != nil {
		return err
	}
	if err := l.prepareMachines(ctx); err != nil {
		return err
	}
	if err := l.allowUserfaults(ctx); err != nil {
		return err
	}
	if err := l.applyShares(ctx); err != nil {
		return err
	}
	if err := l.prepareHosts(ctx, o); err != nil {
		return err
	}
	for _, host := range l.Hosts() {
		if err := l.startHost(ctx, host); err != nil {
			return err
		}
	}
	if err := l.waitForHosts(ctx, l.Hosts()); err != nil || !o.Agent {
		return err
	}
	return l.waitForAgents(ctx)
}

// Missing lists what a lab needs and this machine lacks, and how to get it.
func Missing() (missing []string) {
	if os.Geteuid() != 0 {
		missing = append(missing, "root (it makes namespaces and network links)")
	}
	for program, pkg := range map[string]string{"libvirtd": "libvirt-daemon", "qemu-system-x86_64": "qemu-system-x86", "nft": "nftables"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, fmt.Sprintf("%s (apt install %s)", program, pkg))
		}
	}
	if _, err := user.Lookup("libvirt-qemu"); err != nil {
		missing = append(missing, "the user libvirt-qemu, without which libvirt runs no guest "+
			"(apt install libvirt-daemon-system, or useradd --system --user-group libvirt-qemu)")
	}
	slices.Sort(missing)
	return missing
}

func (o *Options) complete() error {
	if err := CheckShape(o.Name, o.Sites, o.Hosts); err != nil {
		return err
	}
	if missing := Missing(); len(missing) > 0 {
		return fmt.Errorf("this machine lacks what a lab needs: %s", strings.Join(missing, "; "))
	}
	if o.Executable == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the running program: %w", err)
		}
		o.Executable = self
	}
	if o.AgentBinary == "" {
		o.AgentBinary = filepath.Join(filepath.Dir(o.Executable), "watari-agent")
	}
	if o.Agent {
		if _, err := os.Stat(o.AgentBinary); err != nil {
			return fmt.Errorf("find the agent: %w (build it beside watari, or start the hosts without agents)", err)
		}
	}
	if n := o.Sites * o.Hosts; len(o.Tokens) > 0 && len(o.Tokens) != n {
		return fmt.Errorf("%d join tokens for %d hosts: a token admits one host", len(o.Tokens), n)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return nil
}

// Open opens an existing lab.
func Open(name string) (*Lab, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	l := at(name)
	if err := l.load(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the running program: %w", err)
	}
	l.executable = self
	return l, nil
}

// List returns the names of the labs on this machine.
func List() ([]string, error) {
	entries, err := os.ReadDir(stateRoot)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && checkName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// at returns the lab of that name without its state.
func at(name string) *Lab {
	return &Lab{
		dir:      filepath.Join(stateRoot, name),
		run:      filepath.Join(runRoot, name),
		progress: func(string) {},
		state:    state{Name: name},
	}
}

// Name is the lab's name.
func (l *Lab) Name() string { return l.state.Name }

// OnProgress sets the function that is called with each step.
func (l *Lab) OnProgress(f func(line string)) { l.progress = f }

func (l *Lab) say(format string, args ...any) { l.progress(fmt.Sprintf(format, args...)) }

// waitFor polls until done returns true. It gives up when ctx ends or after limit.
func waitFor(ctx context.Context, limit time.Duration, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%s: not within %s", what, limit)
			}
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}
