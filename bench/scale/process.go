package main

// process.go - the manager's process, and its use of resources.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"watari/api/watariv1/watariv1connect"
	"watari/ca"
)

// process is a running manager with its own directory.
type process struct {
	watariv1connect.ControlServiceClient
	url   string
	caPEM []byte
	http  *http.Client
	dir   string
	run   *exec.Cmd
	ended chan error
	proc  procfs.Proc
}

// startManager starts a manager and returns when it leads.
func startManager(ctx context.Context, binary string) (*process, error) {
	// /tmp may be in memory, but etcd's writes to disk are part of the measurement.
	dir, err := os.MkdirTemp("/var/tmp", "watari-bench-scale-")
	if err != nil {
		return nil, err
	}
	p := &process{dir: dir, ended: make(chan error, 1)}
	log, err := os.Create(filepath.Join(dir, "manager.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.run = exec.Command(binary, "manager", "--state", filepath.Join(dir, "manager"), "--listen", "127.0.0.1:0", "--prefix", "10.64.0.0/10")
	p.run.Stderr = log
	p.run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := p.run.Start(); err != nil {
		return nil, err
	}
	go func() { p.ended <- p.run.Wait() }()
	if p.proc, err = procfs.NewProc(p.run.Process.Pid); err == nil {
		err = p.connect(ctx)
	}
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("start a manager: %w", err)
	}
	return p, nil
}

// connect waits for the administrator's client config, and makes a client from it.
func (p *process) connect(ctx context.Context) error {
	var config struct {
		Managers    []string `json:"manager"`
		CA          string   `json:"ca"`
		Certificate string   `json:"certificate"`
		Key         string   `json:"key"`
	}
	err := p.until(ctx, time.Minute, "the manager leads", func() bool {
		text, err := os.ReadFile(filepath.Join(p.dir, "admin.json"))
		return err == nil && json.Unmarshal(text, &config) == nil && len(config.Managers) > 0
	})
	if err != nil {
		return err
	}
	tlsConfig, err := ca.ClientTLS([]byte(config.CA), []byte(config.Certificate), []byte(config.Key))
	if err != nil {
		return err
	}
	p.url, p.caPEM = config.Managers[0], []byte(config.CA)
	p.http = &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}}
	p.ControlServiceClient = watariv1connect.NewControlServiceClient(p.http, p.url)
	return nil
}

var errLate = errors.New("not within the time it was given")

// until waits for a condition.
func (p *process) until(ctx context.Context, limit time.Duration, what string, condition func() bool) error {
	deadline := time.Now().Add(limit)
	for !condition() {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("%s: %w: %s", what, errLate, limit)
		}
		select {
		case err := <-p.ended:
			p.ended <- err
			return fmt.Errorf("the manager ended: %v; its log is %s/manager.log", err, p.dir)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// stop ends the manager and removes its directory. If the manager has ended by itself, it keeps the directory.
func (p *process) stop() {
	select {
	case <-p.ended:
		return // its log may show why
	default:
	}
	p.run.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.run.Process.Kill()
		<-p.ended
	}
	os.RemoveAll(p.dir)
}

// usage returns the manager's CPU time in s and its resident memory in bytes.
func (p *process) usage() (cpu float64, memory uint64) {
	stat, err := p.proc.Stat()
	if err != nil {
		return 0, 0
	}
	return stat.CPUTime(), uint64(stat.ResidentMemory())
}

// ownCPU returns the CPU time of this process, s.
func ownCPU() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
