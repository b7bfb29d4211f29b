package local

// up.go - watari up: its options, and what it starts.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"watari/ca"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/daemon"
	"watari/cmd/internal/progress"
	"watari/internal/qemuprocesses"
	"watari/manager/api"
	"watari/manager/auditlog"
)

const (
	startTimeout = 2 * time.Minute
	startPoll    = 100 * time.Millisecond
	// quiet is how long a start may take before the command prints what it waits for.
	quiet = time.Second
)

const upLong = `Make this machine a manager with its own store, and a host that runs guests. With --manager and --token,
it becomes a host of a manager on another machine. The command does not touch what already runs, so it can be repeated.

Several managers, one of which leads, share an etcd cluster and a directory with the content of images: use
--etcd-endpoints and --blobs for each.

If Watari is installed as a package and systemd is running, the units watari-manager and watari-agent run the manager and
the agent, and start them at boot, too. Their logs are in the journal (journalctl -u watari-agent). Otherwise the manager
and the agent are daemons with the logs /var/lib/watari/manager/manager.log and /var/lib/watari/agent/agent.log.

The options are stored: after a boot without units, "watari up" without options is enough. If no libvirt daemon answers,
the command starts one, which listens on no network. "watari down" ends what this command started. "watari doctor" shows
what a machine lacks.`

// up is one run of `watari up`.
type up struct {
	env *cli.Env
	layout
	options
	before options                  // options of the last `watari up`
	given  func(option string) bool // whether the command line has the option
	token  string
	lines  *progress.Lines
}

// NewUp returns `watari up`.
func NewUp(env *cli.Env) *cobra.Command {
	u := &up{env: env}
	command := &cobra.Command{
		Use:   "up",
		Short: "Start a manager and an agent on this machine, or join another machine's manager",
		Long:  upLong,
		Example: "  sudo watari up\n  sudo watari up --site kyoto --lan-address 192.0.2.7\n  sudo watari up --no-agent --listen 192.0.2.1:7070\n" +
			"  sudo watari up --manager https://192.0.2.1:7070 --token watari1.…\n" +
			"  sudo watari up --no-agent --etcd-endpoints https://192.0.2.2:2379,https://192.0.2.3:2379 --blobs /srv/watari",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	var asked options
	flags := command.Flags()
	flags.StringVar(&asked.Manager, "manager", "", "join the manager at this URL instead of running a manager; of several managers, all URLs, with commas between them")
	flags.StringVar(&u.token, "token", "", "token for joining, from \"watari token create --host\"")
	flags.StringVar(&asked.Site, "site", "", "site of this host (default: "+defaultSite+", or the token's)")
	flags.StringVar(&asked.Name, "name", "", "name of this host (default: the machine's)")
	flags.StringVar(&asked.LANAddress, "lan-address", "", "IPv4 address at which other hosts of the site reach this host (default: that of the default route)")
	flags.StringVar(&asked.Memory, "memory", "", "maximum memory for guests, as in 8G (default: all of this machine's memory)")
	flags.BoolVar(&asked.DialOnly, "dial-only", false, "nothing reaches this machine that it has not asked for: it is behind NAT or a firewall (found out where not given)")
	flags.BoolVar(&asked.Lent, "lent", false, "this machine has an owner who uses it now and then: guests leave it then, as the policy says")
	flags.StringVar(&asked.OwnerGuest, "owner-guest", "", "name of a virtual machine of this machine's libvirt, not of Watari, that the owner uses: its processor time counts as the owner's; \"\": none")
	flags.BoolVar(&asked.AllowUnconfined, "allow-unconfined", false, "accept guests even if QEMU runs as root, or without AppArmor or SELinux")
	flags.StringVar(&asked.ImageBandwidth, "image-bandwidth", "", "limit of the bandwidth at which this host fetches images and templates, and of that at which it passes them on, as in 200mbit or 25M (bytes per second; default: no limit)")
	flags.StringVar(&asked.Listen, "listen", "", "address that the manager listens on (default: "+defaultListen+")")
	flags.BoolVar(&asked.NoAgent, "no-agent", false, "start only the manager: this machine runs no guests, also after a later \"watari up\"; --no-agent=false undoes that")
	flags.BoolVar(&asked.NoSharing, "no-sharing", false, "do not share images and templates between hosts: each host fetches images from the manager and makes its own templates")
	flags.BoolVar(&asked.Metrics, "metrics", false, "serve metrics for Prometheus on this machine: the manager's at http://"+managerMetrics+"/metrics, the agent's at http://"+agentMetrics+"/metrics")
	flags.StringVar(&asked.Prefix, "prefix", "", "IPv4 prefix of which each new cluster gets a /24 or more for its guests (default: "+api.DefaultPrefix.String()+"); hosts do not reach other machines with such addresses")
	flags.StringVar(&asked.Secret, "authority-secret", "", "path of a file with a secret that encrypts the authority's key in the manager's state; \"\": none")
	flags.StringVar(&asked.AuditSyslog, "audit-syslog", "", "syslog server to which the manager sends the audit log, too: local, udp://HOST:PORT, tcp://HOST:PORT or unix:///PATH; \"\": none")
	flags.StringVar(&asked.Fence, "fence", "", "path of a program that the manager runs, with a host's name, to switch off a host with guests that does not answer; \"\": none")
	flags.DurationVar(&asked.FenceAfter, "fence-after", time.Minute, "how long such a host may not answer before it is switched off")
	flags.StringVar(&asked.Outside.Advertise, "advertise", "", "URL at which hosts and users reach this manager (default: from --listen)")
	flags.StringSliceVar(&asked.Outside.Endpoints, "etcd-endpoints", nil, "URLs of an etcd cluster that stores the state (default: an embedded etcd)")
	flags.StringVar(&asked.Outside.CA, "etcd-ca", "", "file with the certificate of etcd's CA")
	flags.StringVar(&asked.Outside.Cert, "etcd-cert", "", "file with the client certificate for etcd")
	flags.StringVar(&asked.Outside.Key, "etcd-key", "", "file with the key of --etcd-cert")
	flags.StringVar(&asked.Outside.Blobs, "blobs", "", "directory with the content of images, shared by all managers if there are several; it has to exist")
	flags.StringVar(&u.state, "state", defaultState, "directory of all of Watari's state")
	cli.CompleteFolders(command, "state", "blobs")
	cli.CompleteFiles(command, "fence", "etcd-ca", "etcd-cert", "etcd-key")
	command.RunE = env.Run(func(ctx context.Context, _ []string) error {
		if err := needRoot("watari up"); err != nil {
			return err
		}
		if err := u.settle(asked, flags.Changed); err != nil {
			return err
		}
		return u.run(ctx)
	})
	return command
}

// settle takes each option from the command line, or else from the last `watari up`, or else uses the default.
func (u *up) settle(asked options, given func(string) bool) error {
	state, err := filepath.Abs(u.state)
	if err != nil {
		return err
	}
	u.state = state
	if u.before, err = u.load(); err != nil {
		return err
	}
	u.options, u.given = u.before, given
	for name, take := range map[string]func(){
		"manager": func() { u.Manager = asked.Manager }, "site": func() { u.Site = asked.Site },
		"name": func() { u.Name = asked.Name }, "lan-address": func() { u.LANAddress = asked.LANAddress },
		"listen": func() { u.Listen = asked.Listen }, "memory": func() { u.Memory = asked.Memory },
		"image-bandwidth": func() { u.ImageBandwidth = asked.ImageBandwidth }, "no-sharing": func() { u.NoSharing = asked.NoSharing },
		"lent":             func() { u.Lent = asked.Lent },
		"owner-guest":      func() { u.OwnerGuest = asked.OwnerGuest },
		"dial-only":        func() { u.DialOnly = asked.DialOnly },
		"allow-unconfined": func() { u.AllowUnconfined = asked.AllowUnconfined },
		"metrics":          func() { u.Metrics = asked.Metrics },
		"prefix":           func() { u.Prefix = asked.Prefix },
		"authority-secret": func() {
			if u.Secret = asked.Secret; u.Secret != "" {
				u.Secret, err = filepath.Abs(u.Secret)
			}
		},
		"audit-syslog": func() { u.AuditSyslog = asked.AuditSyslog },
		"fence":        func() { u.Fence, u.FenceAfter = asked.Fence, asked.FenceAfter },
		"fence-after":  func() { u.FenceAfter = asked.FenceAfter },
		"no-agent":     func() { u.NoAgent = asked.NoAgent },
		"advertise":    func() { u.Outside.Advertise = asked.Outside.Advertise }, "blobs": func() { u.Outside.Blobs = asked.Outside.Blobs },
		"etcd-endpoints": func() { u.Outside.Endpoints = asked.Outside.Endpoints }, "etcd-ca": func() { u.Outside.CA = asked.Outside.CA },
		"etcd-cert": func() { u.Outside.Cert = asked.Outside.Cert }, "etcd-key": func() { u.Outside.Key = asked.Outside.Key },
	} {
		if given(name) {
			take()
		}
	}
	if err != nil {
		return fmt.Errorf("--authority-secret: %w", err)
	}
	if u.AuditSyslog != "" {
		if _, err := auditlog.ParseServer(u.AuditSyslog); err != nil {
			return cli.Usagef("--audit-syslog: %v", err)
		}
	}
	if u.Name == "" {
		machine, err := os.Hostname()
		if err != nil {
			return err
		}
		u.Name = hostName(machine)
	}
	if u.Listen == "" {
		u.Listen = defaultListen
	}
	if u.Site == "" && u.Manager == "" {
		u.Site = defaultSite
	}
	if err := u.check(); err != nil {
		return err
	}
	return u.checkGiven()
}

func (u *up) check() error {
	if err := cli.CheckName("host", u.Name); err != nil {
		return err
	}
	if u.Site != "" {
		if err := cli.CheckName("site", u.Site); err != nil {
			return err
		}
	}
	if u.LANAddress != "" && net.ParseIP(u.LANAddress).To4() == nil {
		return cli.Usagef("--lan-address %q: give an IPv4 address", u.LANAddress)
	}
	if _, err := u.memoryMiB(); err != nil {
		return cli.Usagef("--memory: %v", err)
	}
	if _, err := u.imageBandwidth(); err != nil {
		return cli.Usagef("--image-bandwidth: %v", err)
	}
	if u.OwnerGuest != "" {
		if err := qemuprocesses.CheckDomain(u.OwnerGuest); err != nil {
			return cli.Usagef("--owner-guest %v", err)
		}
	}
	if u.Prefix != "" {
		if _, err := api.ParsePrefix(u.Prefix); err != nil {
			return cli.Usagef("--prefix %v", err)
		}
	}
	if _, _, err := net.SplitHostPort(u.Listen); err != nil {
		return cli.Usagef("--listen %q: give address:port, as in %s", u.Listen, defaultListen)
	}
	switch {
	case u.Manager != "" && u.NoAgent && !u.given("no-agent"):
		return cli.Usagef("--manager: this machine runs no agent, because of an earlier --no-agent; give --no-agent=false, too")
	case u.Manager != "" && u.NoAgent && !u.given("manager"):
		return cli.Usagef("--no-agent: there would be nothing to start, because this machine is a host of %s; for a manager on this machine give --manager \"\", too", u.Manager)
	case u.Manager != "" && u.NoAgent:
		return cli.Usagef("--manager and --no-agent exclude each other: there would be nothing to start")
	case u.token != "" && u.Manager == "":
		return cli.Usagef("--token needs --manager URL")
	}
	if u.token != "" {
		if _, err := ca.ParseToken(u.token); err != nil {
			return cli.Usagef("--token: %v", err)
		}
	}
	return nil
}

// agentAlone and managerAlone are the options that only the agent, or only the manager, has.
var (
	agentAlone   = []string{"site", "name", "lan-address", "memory", "dial-only", "lent", "owner-guest", "allow-unconfined", "image-bandwidth"}
	managerAlone = []string{"listen", "no-sharing", "prefix", "authority-secret", "audit-syslog", "fence", "fence-after", "advertise", "etcd-endpoints", "etcd-ca", "etcd-cert",
		"etcd-key", "blobs"}
)

// checkGiven refuses options of a daemon that is not to run on this machine. Those of an earlier `watari up` stay for when it is.
func (u *up) checkGiven() error {
	if i := slices.IndexFunc(agentAlone, u.given); i >= 0 && u.NoAgent {
		if u.given("no-agent") {
			return cli.Usagef("--%s is for the agent, and --no-agent starts none: omit one of them", agentAlone[i])
		}
		return cli.Usagef("--%s is for the agent, and this machine runs none, because of an earlier --no-agent; give --no-agent=false, too", agentAlone[i])
	}
	if i := slices.IndexFunc(managerAlone, u.given); i >= 0 && u.Manager != "" {
		return cli.Usagef("--%s is for a manager, and this machine runs none: it is a host of %s; give the option on the manager's machine", managerAlone[i], u.Manager)
	}
	return nil
}

func (u *up) run(ctx context.Context) error {
	u.lines = progress.New(u.env.Err)
	if err := u.checkRunning(); err != nil {
		return err
	}
	if err := u.save(u.options); err != nil {
		return err
	}
	err := u.steps(ctx)
	if errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
		u.lines.Keep()
		return cli.Interruptedf("stopped waiting; what was started keeps running, `sudo watari down` ends it")
	}
	u.lines.Clear()
	return err
}

// checkRunning refuses options that differ from those of a running daemon.
func (u *up) checkRunning() error {
	for _, one := range []struct {
		spec daemon.Spec
		same bool
	}{
		{u.manager(), reflect.DeepEqual(u.before.ofManager(), u.options.ofManager())},
		{u.agent(), reflect.DeepEqual(u.before.ofAgent(), u.options.ofAgent()) && (u.token == "" || u.hasCertificate())},
	} {
		process, err := running(one.spec, func(string, ...any) {}) // the start will say it
		if err != nil {
			return err
		}
		if process != nil && !one.same {
			return fmt.Errorf("the %s runs already%s, with other options; end it with `sudo watari down` (guests keep running), then repeat this command",
				one.spec.Name, process.Number())
		}
		if process != nil && one.spec.Name == "agent" && u.NoAgent && u.given("no-agent") {
			return fmt.Errorf("--no-agent: the agent runs already%s; end it with `sudo watari down` (guests keep running), then repeat this command", process.Number())
		}
	}
	return nil
}

func (u *up) steps(ctx context.Context) error {
	if u.Manager == "" {
		if err := u.startManager(ctx); err != nil {
			return err
		}
	}
	if u.NoAgent {
		if !u.given("no-agent") {
			u.lines.Notef("this machine runs no agent, because of an earlier --no-agent; `sudo watari up --no-agent=false` starts one")
		}
		return nil
	}
	if err := u.startLibvirt(ctx); err != nil {
		return err
	}
	if err := u.startAgent(ctx); err != nil {
		return err
	}
	if text, err := os.ReadFile("/proc/sys/vm/unprivileged_userfaultfd"); err == nil && strings.TrimSpace(string(text)) == "0" {
		u.lines.Notef("QEMU does not run as root and may not use userfaultfd, so that guests cannot be saved while they run: " +
			"sysctl vm.unprivileged_userfaultfd=1, and in /etc/sysctl.d")
	}
	return nil
}

// start starts a daemon if it is not running.
func (u *up) start(spec daemon.Spec) (process *daemon.Process, began bool, err error) {
	if process, err = running(spec, u.lines.Notef); process != nil || err != nil {
		return process, false, err
	}
	process, err = daemon.Start(spec)
	return process, true, err
}

// await waits until done reports that a daemon serves. Meanwhile it prints what it waits for.
func (u *up) await(ctx context.Context, process *daemon.Process, what string, done func() (ok bool, why string)) error {
	begun := time.Now()
	for {
		ok, why := done()
		if ok {
			return nil
		}
		if process.Ended() {
			return process.Died()
		}
		text := fmt.Sprintf("%s: %s", what, why)
		if u.lines.Terminal() {
			text = fmt.Sprintf("%s (%.0f s): %s", what, time.Since(begun).Seconds(), why)
		}
		if time.Since(begun) > quiet {
			u.lines.Set(progress.Line{Key: what, Text: text})
		}
		if time.Since(begun) > startTimeout {
			return fmt.Errorf("%s: not done after %s: %s; it goes on, and its log (%s) may say why; `sudo watari down` ends it", what, startTimeout, why, process.Log())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(startPoll):
		}
	}
}
