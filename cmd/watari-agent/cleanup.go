package main

// cleanup.go - finds and removes what remains when an agent has ended.

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"watari/agent"
	"watari/agent/machine"
	"watari/agent/volume"
	"watari/internal/lan"
	"watari/internal/qemuprocesses"
)

// cleanup lists the guests that still run, and the volumes. With --guests it ends the guests and the volumes' daemons, and
// removes the network. Volumes stay on disk.
func cleanup(args []string) error {
	flags := flag.NewFlagSet("watari-agent cleanup", flag.ContinueOnError)
	guests := flags.Bool("guests", false, "end the guests and take taps, routes, WireGuard and the packet filter away")
	o := options{}
	flags.StringVar(&o.state, "state", "/var/lib/watari/agent", "the agent's state `folder`")
	flags.StringVar(&o.run, "run", "/run/watari", "the agent's run `folder`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; see watari-agent cleanup --help", flags.Arg(0))
	}
	running, err := qemuprocesses.List()
	if err != nil {
		return err
	}
	disks, run := agent.VolumeFolders(o.state, o.run)
	volumes, err := volume.List(disks)
	if err != nil {
		return err
	}
	copies, err := volume.Copies(disks)
	if err != nil {
		return err
	}
	if !*guests {
		for _, p := range running {
			fmt.Printf("watari-%s runs on (pid %d)\n", p.Name, p.PID)
		}
		for uid, f := range volumes {
			fmt.Printf("volume %s is here, with all its files (%s)\n", f.Name, filepath.Join(disks, uid))
		}
		return nil
	}
	unlock, err := lock(o)
	if err != nil {
		return fmt.Errorf("%w; end it first", err)
	}
	defer unlock()
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	killed := map[string]bool{}
	for _, p := range running {
		if err := endProcess(p); err != nil {
			return err
		}
		killed[p.UID] = true
		fmt.Printf("watari-%s was ended\n", p.Name)
	}
	for uid := range volumes {
		volume.Open(disks, run, uid).Stop()
	}
	for uid := range copies {
		volume.OpenCopy(disks, run, uid).Stop()
	}
	if err := recordEnds(o, killed); err != nil {
		return err
	}
	if err := removeNetwork(o); err != nil {
		return err
	}
	_, _ = newWatchdog(o, "").Keep(nil) // then it ends
	os.RemoveAll(filepath.Join(o.run, "guests"))
	os.RemoveAll(filepath.Join(o.run, "tunnel"))
	return nil
}

// removeNetwork removes everything that the overlay made, if an agent has ever run here.
func removeNetwork(o options) error {
	kept, err := readOptions(o.run)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	kept.state, kept.run = o.state, o.run
	if address, err := netip.ParseAddr(kept.lanAddress); err == nil && !lan.Has(address) { // any will do: the interface's settings are kept apart
		found, _ := lan.Find()
		kept.lanAddress = found.String()
	}
	network, err := openNetwork(kept, slog.Default(), nil)
	if err != nil {
		return err
	}
	defer network.Close()
	return network.Cleanup(context.Background())
}

// keptOptions are the agent's options that cleaning up needs.
type keptOptions struct {
	Name          string `json:"name"`
	LANAddress    string `json:"lan_address,omitempty"`
	LANInterface  string `json:"lan_interface,omitempty"`
	WireGuardPort uint   `json:"wireguard_port"`
}

func keepOptions(o options) error {
	data, err := json.Marshal(keptOptions{o.name, o.lanAddress, o.lanInterface, o.wireguardPort})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.run, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.run, "agent.json"), data, 0o644)
}

func readOptions(run string) (options, error) {
	data, err := os.ReadFile(filepath.Join(run, "agent.json"))
	if err != nil {
		return options{}, err
	}
	var kept keptOptions
	if err := json.Unmarshal(data, &kept); err != nil {
		return options{}, fmt.Errorf("read the agent's options: %w", err)
	}
	return options{name: kept.Name, lanAddress: kept.LANAddress, lanInterface: kept.LANInterface, wireguardPort: kept.WireGuardPort}, nil
}

// recordEnds records that no guest exists any more. killed has the uids of the guests that had a process.
func recordEnds(o options, killed map[string]bool) error {
	store := agent.NewRecordStore(filepath.Join(o.state, "guests"))
	records, _, _, err := store.Load()
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Phase == machine.PhaseEnded {
			continue
		}
		if err := store.Save(r.EndByHand(killed[r.UID]), true); err != nil {
			return err
		}
	}
	return nil
}

// endProcess ends a guest's process, and waits until it has ended.
func endProcess(p qemuprocesses.Process) error {
	syscall.Kill(p.PID, syscall.SIGTERM)
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		list, err := qemuprocesses.List()
		pids := qemuprocesses.ByGuest(list)[p.UID]
		switch {
		case err != nil:
			return fmt.Errorf("end watari-%s: %w", p.Name, err)
		case len(pids) == 0:
			return nil
		case time.Since(begun) > 10*time.Second:
			return fmt.Errorf("end watari-%s: its process %d does not end", p.Name, p.PID)
		case time.Since(begun) > 3*time.Second:
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}
