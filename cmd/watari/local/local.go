// Package local holds `watari up` and `watari down`: the manager and the agent of this machine.
package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"watari/cmd/internal/daemon"
	"watari/cmd/internal/output"
	"watari/internal/durable"
)

const (
	defaultState  = "/var/lib/watari"
	defaultListen = "0.0.0.0:7070"
	defaultSite   = "local"
	defaultRun    = "/run/watari"
	libvirtURI    = "qemu:///system"
)

// Where the daemons serve metrics: on this machine alone.
const (
	managerMetrics = "127.0.0.1:7073"
	agentMetrics   = "127.0.0.1:7074"
)

// options are the options of `watari up`. They are stored, so that a later `watari up` needs no options.
type options struct {
	Manager    string `json:"manager,omitempty"` // empty: run one on this machine
	Site       string `json:"site,omitempty"`
	Name       string `json:"name,omitempty"`
	LANAddress string `json:"lan_address,omitempty"`
	Memory     string `json:"memory,omitempty"` // as in 8G; empty: all
	// ImageBandwidth limits how fast the agent fetches images and templates, for example 200mbit; empty: no limit.
	ImageBandwidth string `json:"image_bandwidth,omitempty"`
	// AllowUnconfined accepts guests whose QEMU runs as root or without a security driver.
	AllowUnconfined bool `json:"allow_unconfined,omitempty"`
	// DialOnly states that no machine can connect to this one: it only dials out.
	DialOnly bool `json:"dial_only,omitempty"`
	// Lent states that the machine's owner has lent it out.
	Lent bool `json:"lent,omitempty"`
	// OwnerGuest is the libvirt domain that the machine's owner uses; empty: none.
	OwnerGuest string `json:"owner_guest,omitempty"`
	Listen     string `json:"listen,omitempty"`
	NoAgent    bool   `json:"no_agent,omitempty"`
	// Prefix is the IPv4 prefix of which each cluster gets a part; empty: the manager's default.
	Prefix    string `json:"prefix,omitempty"`
	NoSharing bool   `json:"no_sharing,omitempty"`
	Metrics   bool   `json:"metrics,omitempty"`
	// Secret is the path of a file with a secret that encrypts the authority's key; empty: none.
	Secret string `json:"secret,omitempty"`
	// AuditSyslog is the syslog server that also gets the audit log; empty: none.
	AuditSyslog string `json:"audit_syslog,omitempty"`
	// Fence is the path of a program that switches off a host that has not answered for FenceAfter; empty: none.
	Fence      string        `json:"fence,omitempty"`
	FenceAfter time.Duration `json:"fence_after,omitempty"`
	Outside    store         `json:"store"`
}

// ofManager returns the manager's options.
func (o options) ofManager() options {
	return options{Listen: o.Listen, Prefix: o.Prefix, NoSharing: o.NoSharing, Metrics: o.Metrics, Secret: o.Secret, AuditSyslog: o.AuditSyslog,
		Fence: o.Fence, FenceAfter: o.FenceAfter, Outside: o.Outside}
}

// ofAgent returns the agent's options.
func (o options) ofAgent() options {
	return options{Manager: o.Manager, Site: o.Site, Name: o.Name, LANAddress: o.LANAddress, Memory: o.Memory,
		AllowUnconfined: o.AllowUnconfined, DialOnly: o.DialOnly, Lent: o.Lent, OwnerGuest: o.OwnerGuest, ImageBandwidth: o.ImageBandwidth, Metrics: o.Metrics}
}

// memoryMiB returns how much memory guests may use, in MiB; 0: all.
func (o options) memoryMiB() (uint64, error) {
	if o.Memory == "" {
		return 0, nil
	}
	bytes, err := output.ParseSize(o.Memory)
	if err == nil && bytes < 1<<20 {
		err = fmt.Errorf("%s is less than 1M", o.Memory)
	}
	return bytes >> 20, err
}

// imageBandwidth returns how many bytes per second of images and templates the agent may fetch; 0: no limit.
func (o options) imageBandwidth() (uint64, error) {
	if o.ImageBandwidth == "" {
		return 0, nil
	}
	return output.ParseRate(o.ImageBandwidth)
}

// store configures a manager that keeps its objects in an etcd cluster together with other managers.
type store struct {
	Advertise string   `json:"advertise,omitempty"`
	Blobs     string   `json:"blobs,omitempty"`
	Endpoints []string `json:"etcd_endpoints,omitempty"`
	CA        string   `json:"etcd_ca,omitempty"`
	Cert      string   `json:"etcd_cert,omitempty"`
	Key       string   `json:"etcd_key,omitempty"`
}

// arguments returns the manager's arguments.
func (s store) arguments() []string {
	var all []string
	for _, pair := range [][2]string{{"advertise", s.Advertise}, {"blobs", s.Blobs}, {"etcd-endpoints", strings.Join(s.Endpoints, ",")},
		{"etcd-ca", s.CA}, {"etcd-cert", s.Cert}, {"etcd-key", s.Key}} {
		if pair[1] != "" {
			all = append(all, "--"+pair[0], pair[1])
		}
	}
	return all
}

// layout knows the paths of Watari's files on this machine.
type layout struct{ state string }

func (l layout) options() string     { return filepath.Join(l.state, "up", "options.json") }
func (l layout) adminConfig() string { return filepath.Join(l.state, "admin.json") }
func (l layout) agentState() string  { return filepath.Join(l.state, "agent") }
func (l layout) agentPKI() string    { return filepath.Join(l.state, "agent", "pki") }
func (l layout) tokenFile() string   { return filepath.Join(l.state, "up", "join-token") }

// daemon returns a daemon with its pid file and log. The caller fills in the command.
func (l layout) daemon(name, folder string) daemon.Spec {
	return daemon.Spec{Name: name, PIDFile: filepath.Join(l.state, "up", name+".pid"), Log: filepath.Join(l.state, folder, name+".log")}
}

func (l layout) manager() daemon.Spec  { return l.service("manager") }
func (l layout) agent() daemon.Spec    { return l.service("agent") }
func (l layout) libvirtd() daemon.Spec { return l.daemon("libvirtd", "libvirt") }
func (l layout) virtlogd() daemon.Spec { return l.daemon("virtlogd", "libvirt") }

// service returns a daemon that has a systemd unit if Watari is installed as a package. The units work only with the
// default state directory.
func (l layout) service(name string) daemon.Spec {
	spec := l.daemon(name, name)
	if _, err := os.Stat("/run/systemd/system"); err == nil && l.state == defaultState { // sd_booted(3)
		spec.Unit = "watari-" + name + ".service"
	}
	return spec
}

// running finds a running daemon; nil if it is not running. A damaged pid file counts as none, with a note: it must not prevent that
// Watari is started, ended or removed.
func running(spec daemon.Spec, note func(format string, args ...any)) (*daemon.Process, error) {
	process, err := daemon.Running(spec)
	if errors.Is(err, daemon.ErrDamaged) {
		note("%v; this goes on as if the %s did not run. If it does (`ps -C watari,watari-agent`), end it with `kill`", err, spec.Name)
		return nil, nil
	}
	return process, err
}

// load reads the options of the last `watari up`, if there was one.
func (l layout) load() (options, error) {
	var o options
	text, err := os.ReadFile(l.options())
	if errors.Is(err, os.ErrNotExist) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		return o, fmt.Errorf("read the options of the last `watari up` in %s: %w", l.options(), err)
	}
	return o, nil
}

func (l layout) save(o options) error {
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(l.options()), 0o755); err != nil {
		return err
	}
	return durable.WriteFile(l.options(), append(text, '\n'), 0o600)
}

// needRoot returns an error that says why the command needs root.
func needRoot(command string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return fmt.Errorf("%s needs root, because it sets up networks and virtual machines: sudo %s", command, command)
}

// Program finds a program beside this one, in the PATH, or in the sbin directories.
func Program(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, folder := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("program %s is neither beside watari nor in the PATH; install it", name)
}

// hostName converts this machine's name to a host's name: the first label without characters that a name cannot have.
func hostName(machine string) string {
	label, _, _ := strings.Cut(strings.ToLower(machine), ".")
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, label)
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		name = "host-" + name
	}
	return strings.Trim(name[:min(len(name), 40)], "-")
}
