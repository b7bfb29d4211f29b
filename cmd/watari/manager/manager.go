// Package manager is the command `watari manager`, which runs the manager daemon in the foreground. People use
// `watari up`, which starts it.
package manager

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"watari/ca"
	"watari/cmd/internal/cli"
	"watari/internal/logfile"
	daemon "watari/manager"
	"watari/manager/api"
	"watari/manager/auditlog"
)

// flags are the command's flags.
type flags struct {
	config                    daemon.Config
	prefix, secret, syslog    string
	etcdCA, etcdCert, etcdKey string
	debug                     bool
}

// Command returns `watari manager`.
func Command() *cobra.Command {
	var f flags
	command := &cobra.Command{
		Use:    "manager",
		Short:  "Run the manager in the foreground",
		Hidden: true,
		Long: "Run the manager in the foreground: the control API, agents' sessions, and the controllers, with etcd embedded " +
			"unless --etcd-endpoints names one. It logs to standard error and ends at SIGTERM. Guests and runs continue without it.",
		Example:       "  watari manager --state /var/lib/watari/manager --listen 0.0.0.0:7070",
		Args:          cli.Args(),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return f.run(c.Context()) },
	}
	set := command.Flags()
	set.StringVar(&f.config.State, "state", "/var/lib/watari/manager", "directory of the manager's state")
	set.StringVar(&f.config.Listen, "listen", "0.0.0.0:7070", "TCP address of the manager's only port (TLS)")
	set.StringVar(&f.config.Advertise, "advertise", "", "URL at which agents and users reach this manager (default: from --listen)")
	set.StringVar(&f.config.Name, "name", "", "this manager's name (default: the host name)")
	set.StringVar(&f.config.AdminConfig, "admin-config", "", "path of the client config that is written for the first administrator (default: admin.json beside --state)")
	set.StringVar(&f.config.Blobs, "blobs", "", "directory with the content of images, shared by several managers; it has to exist (default: blobs in --state)")
	set.StringVar(&f.prefix, "prefix", api.DefaultPrefix.String(), "IPv4 prefix from which each cluster gets a /24 or larger")
	set.BoolVar(&f.config.NoSharing, "no-sharing", false, "do not share images and templates between hosts")
	set.StringSliceVar(&f.config.EtcdEndpoints, "etcd-endpoints", nil, "URLs of an etcd cluster (default: etcd is embedded)")
	set.StringVar(&f.etcdCA, "etcd-ca", "", "file with the certificate of etcd's CA, PEM")
	set.StringVar(&f.etcdCert, "etcd-cert", "", "file with the client certificate for etcd, PEM")
	set.StringVar(&f.etcdKey, "etcd-key", "", "file with the key of --etcd-cert, PEM")
	set.StringVar(&f.secret, "authority-secret", "", "file with a secret that encrypts the authority's key in the store (default: it is not encrypted)")
	set.StringVar(&f.syslog, "audit-syslog", "", "syslog server to which the audit log is sent, too: local, udp://HOST:PORT, tcp://HOST:PORT or unix:///PATH (default: none)")
	set.StringVar(&f.config.Metrics, "metrics", "", "address where Prometheus may ask for metrics, such as 127.0.0.1:7073 (default: none)")
	set.StringVar(&f.config.FenceCommand, "fence", "", "path of a program that switches off a host with guests that does not answer; it gets the host's name (default: none)")
	set.DurationVar(&f.config.FenceAfter, "fence-after", time.Minute, "how long such a host may not answer before it is switched off")
	set.BoolVar(&f.debug, "debug", false, "log more")
	command.AddCommand(f.setAside(command), f.enableAdmin(command))
	return command
}

// setAside returns `watari manager set-aside`, which has the flags for the location of the state.
func (f *flags) setAside(parent *cobra.Command) *cobra.Command {
	command := &cobra.Command{
		Use:   "set-aside KEY",
		Short: "Set an unreadable object aside while the manager is stopped",
		Long: "Set an object aside that the manager cannot read. The manager must be stopped. A manager does not lead while its store has " +
			"such an object, and names the object in its log and in the answer to `watari status`. The object stays in etcd under " +
			"/watari-set-aside/, where nothing reads it. The manager no longer knows a guest that was set aside; hosts keep its copy.",
		Example:       "  watari manager set-aside /watari/guests/md-1",
		Args:          cli.Args("KEY"),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if f.config.EtcdTLS, err = f.etcdTLS(); err != nil {
				return err
			}
			if f.config.Listen == "" {
				f.config.Listen = "none" // set-aside does not listen
			}
			ctx, stop := signal.NotifyContext(context.WithoutCancel(c.Context()), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			kept, err := daemon.SetAside(ctx, f.config, args[0])
			if err == nil {
				fmt.Fprintf(c.OutOrStdout(), "%s was set aside; it is kept at %s\n", args[0], kept)
			}
			return err
		},
	}
	for _, name := range []string{"state", "etcd-endpoints", "etcd-ca", "etcd-cert", "etcd-key"} {
		command.Flags().AddFlag(parent.Flags().Lookup(name))
	}
	return command
}

// enableAdmin returns `watari manager enable-admin`.
func (f *flags) enableAdmin(parent *cobra.Command) *cobra.Command {
	command := &cobra.Command{
		Use:   "enable-admin",
		Short: "Let the first administrator in again, from the manager's machine",
		Long: "Let the first administrator in again whom another one has disabled with `watari user disable admin`. It is for root of the manager's machine, for the " +
			"case that nobody is left who could undo that. The manager does it within five minutes if it leads, and otherwise when it leads the next time.",
		Example:       "  watari manager enable-admin --state /var/lib/watari/manager",
		Args:          cli.Args(),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := os.Stat(f.config.State); err != nil {
				return fmt.Errorf("there is no manager's state (say where with --state): %w", err)
			}
			if err := daemon.EnableAdmin(f.config.State); err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), "the manager enables user admin when it leads")
			return nil
		},
	}
	command.Flags().AddFlag(parent.Flags().Lookup("state"))
	return command
}

func (f *flags) run(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	level := slog.LevelInfo
	if f.debug {
		level = slog.LevelDebug
	}
	f.config.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	var err error
	if f.config.Prefix, err = api.ParsePrefix(f.prefix); err != nil {
		return fmt.Errorf("--prefix %w", err)
	}
	if f.config.EtcdTLS, err = f.etcdTLS(); err != nil {
		return err
	}
	if f.config.Secret, err = readSecret(f.secret); err != nil {
		return err
	}
	if f.syslog != "" {
		server, err := auditlog.ParseServer(f.syslog)
		if err != nil {
			return fmt.Errorf("--audit-syslog: %w", err)
		}
		f.config.AuditSyslog = &server
	}
	if f.config.FenceCommand != "" {
		if err := checkFence(f.config.FenceCommand, f.config.FenceAfter); err != nil {
			return err
		}
	}
	go logfile.Bound(ctx, os.Stderr, f.config.Log)
	return daemon.Run(ctx, f.config)
}

// leastFenceAfter leaves an agent enough time to restart.
const leastFenceAfter = 10 * time.Second

// readSecret reads the file of --authority-secret, or returns nil if there is none.
func readSecret(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--authority-secret: %w", err)
	}
	secret := bytes.TrimSpace(text)
	if err := ca.CheckSecret(secret); err != nil {
		return nil, fmt.Errorf("--authority-secret %s: %w", path, err)
	}
	return secret, nil
}

// checkFence refuses a fencing command that cannot be run.
func checkFence(command string, after time.Duration) error {
	info, err := os.Stat(command)
	switch {
	case err != nil:
		return fmt.Errorf("--fence: %w", err)
	case !filepath.IsAbs(command) || info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("--fence %s: give the absolute path of a program that may be run", command)
	case after < leastFenceAfter:
		return fmt.Errorf("--fence-after %s is too short: at least %s, so that an agent can be restarted", after, leastFenceAfter)
	}
	return nil
}

// etcdTLS returns the TLS configuration for etcd; nil if no certificates are named.
func (f *flags) etcdTLS() (*tls.Config, error) {
	if f.etcdCA == "" && f.etcdCert == "" && f.etcdKey == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.etcdCA != "" {
		text, err := os.ReadFile(f.etcdCA)
		if err != nil {
			return nil, fmt.Errorf("read --etcd-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("read --etcd-ca: " + f.etcdCA + " holds no PEM certificate")
		}
	}
	if f.etcdCert != "" || f.etcdKey != "" {
		pair, err := tls.LoadX509KeyPair(f.etcdCert, f.etcdKey)
		if err != nil {
			return nil, fmt.Errorf("read --etcd-cert and --etcd-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
