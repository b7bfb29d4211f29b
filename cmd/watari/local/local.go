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

// options are those of `watari up`; they are kept, so that a later `watari up` needs none.
type options struct {
	Manager    string `json:"manager,omitempty"` // empty: one is run here
	Site       string `json:"site,omitempty"`
	Name       string `json:"name,omitempty"`
	LANAddress string `json:"lan_address,omitempty"`
	Memory     string `json:"memory,omitempty"` // as in 8G; empty: all
	// ImageBandwidth bounds what the agent fetches of images and templates, as in 200mbit; empty: no limit.
	ImageBandwidth string `json:"image_bandwidth,omitempty"`
	// AllowUnconfined accepts guests whose QEMU runs as root or without a security driver.
	AllowUnconfined bool   `json:"allow_unconfined,omitempty"`
	Listen          string `json:"listen,omitempty"`
	NoAgent         bool   `json:"no_agent,omitempty"`
	NoSharing       bool   `json:"no_sharing,omitempty"`
	Outside         store  `json:"store"`
}

// ofManager are the options that the manager is started with.
func (o options) ofManager() options {
	return options{Listen: o.Listen, NoSharing: o.NoSharing, Outside: o.Outside}
}

// ofAgent are those of the agent.
func (o options) ofAgent() options {
	return options{Manager: o.Manager, Site: o.Site, Name: o.Name, LANAddress: o.LANAddress, Memory: o.Memory,
		AllowUnconfined: o.AllowUnconfined, ImageBandwidth: o.ImageBandwidth}
}

// memoryMiB is how much memory guests may take; 0: all.
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

// imageBandwidth is how many bytes per second of images and templates the agent may fetch; 0: no limit.
func (o options) imageBandwidth() (uint64, error) {
	if o.ImageBandwidth == "" {
		return 0, nil
	}
	return output.ParseRate(o.ImageBandwidth)
}

// store is what a manager needs that keeps its objects in an etcd cluster, beside other managers.
type store struct {
	Advertise string   `json:"advertise,omitempty"`
	Blobs     string   `json:"blobs,omitempty"`
	Endpoints []string `json:"etcd_endpoints,omitempty"`
	CA        string   `json:"etcd_ca,omitempty"`
	Cert      string   `json:"etcd_cert,omitempty"`
	Key       string   `json:"etcd_key,omitempty"`
}

// arguments are the manager's.
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

// layout is where things are on this machine.
type layout struct{ state string }

func (l layout) options() string     { return filepath.Join(l.state, "up", "options.json") }
func (l layout) adminConfig() string { return filepath.Join(l.state, "admin.json") }
func (l layout) agentState() string  { return filepath.Join(l.state, "agent") }
func (l layout) agentPKI() string    { return filepath.Join(l.state, "agent", "pki") }
func (l layout) tokenFile() string   { return filepath.Join(l.state, "up", "join-token") }

// daemon is where the pid file and log of a daemon are. Its command is to be filled in.
func (l layout) daemon(name, folder string) daemon.Spec {
	return daemon.Spec{Name: name, PIDFile: filepath.Join(l.state, "up", name+".pid"), Log: filepath.Join(l.state, folder, name+".log")}
}

func (l layout) manager() daemon.Spec  { return l.service("manager") }
func (l layout) agent() daemon.Spec    { return l.service("agent") }
func (l layout) libvirtd() daemon.Spec { return l.daemon("libvirtd", "libvirt") }
func (l layout) virtlogd() daemon.Spec { return l.daemon("virtlogd", "libvirt") }

// service is a daemon that has a systemd unit where Watari is installed as a package. The units are for the default
// state alone.
func (l layout) service(name string) daemon.Spec {
	spec := l.daemon(name, name)
	if _, err := os.Stat("/run/systemd/system"); err == nil && l.state == defaultState { // sd_booted(3)
		spec.Unit = "watari-" + name + ".service"
	}
	return spec
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

// needRoot says what root is needed for.
func needRoot(command string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return fmt.Errorf("%s needs root, since it sets up networks and virtual machines: sudo %s", command, command)
}

// Program finds a program beside this one, or on the PATH, or among the administrator's.
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
	return "", fmt.Errorf("there is no program %s, neither beside watari nor on the PATH; install it", name)
}

// hostName makes this machine's name into a host's: the first label, with what a name cannot hold left out.
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
