package agent

// nfs.go - the kernel's NFS server of the shared home.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// nfsPort is NFS version 4's only port.
const nfsPort = 2049

// nfsRecords is the folder of the server's records of its clients, for a restart of the server.
const nfsRecords = "/run/watari/nfs"

// nfsThreads is the number of the server's kernel threads.
const nfsThreads = "4"

// Flags of an export (linux/nfsd/export.h).
const (
	exportRootSquash     = 0x4    // root of a peer is the ordinary user
	exportAsync          = 0x10   // memory needs no syncing
	exportNoSubtreeCheck = 0x400  // the whole file system is exported
	exportFSID           = 0x2000 // it has a number, because it has no device
)

// never is when an entry of the kernel's caches expires, in seconds since 1970.
const never = 1<<31 - 1

// nfsControl is the kernel server's control directory; tests replace it.
var nfsControl = "/proc/fs/nfsd"

// nfsServer runs the kernel's NFS server. It serves only version 4, which needs no other daemon, and only on the
// overlay address. In place of rpc.mountd, it tells the kernel which peers may mount which file system.
type nfsServer struct {
	log *slog.Logger

	starting  sync.Mutex // held while the server is being set up; guards the rest
	answering bool       // it answers the kernel's questions
	started   bool
	listens   string // address

	mu     sync.Mutex
	wanted homeWanted
	epoch  uint64 // the guest's
}

func newNFSServer(log *slog.Logger) *nfsServer { return &nfsServer{log: log} }

func (s *nfsServer) setEpoch(epoch uint64) {
	s.mu.Lock()
	s.epoch = epoch
	s.mu.Unlock()
}

// export serves a home to its peers.
func (s *nfsServer) export(w homeWanted) error {
	if err := s.start(); err != nil {
		return err
	}
	s.mu.Lock()
	changed, epoch := s.wanted != w, s.epoch
	s.wanted = w
	s.mu.Unlock()
	if changed {
		for _, cache := range []string{"nfsd.export", "nfsd.fh", "auth.unix.ip"} {
			os.WriteFile("/proc/net/rpc/"+cache+"/flush", []byte(fmt.Sprint(never)), 0)
		}
	}
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.listens == w.own {
		return nil
	}
	// An earlier agent may have done this: the kernel's server outlives its agent.
	if s.listens != "" || nfsListeners() < 2 {
		if s.listens == "" && epoch > 1 {
			// An earlier start of the guest may have been from the same template, and its server has given numbers to clients that
			// still use them. This one would give the same numbers to other clients. A server that starts now has other numbers.
			if err := errors.Join(setNFS("threads", "0"), raiseNFS(nfsRecords)); err != nil {
				return err
			}
		}
		if err := nfsListen(w.own); err != nil {
			return err
		}
	}
	s.listens = w.own
	return nil
}

// start starts the kernel's server, which takes a second. No peer can reach it before nfsListen. It already runs in a
// template, so that forked guests need not wait.
func (s *nfsServer) start() error {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.started {
		return nil
	}
	if !knows("nfsd") {
		return errors.New("the guest's kernel has no NFS server (module nfsd, which the image ought to hold)")
	}
	if err := os.MkdirAll(nfsRecords, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("nfsd", nfsControl, "nfsd", 0, ""); err != nil && err != unix.EBUSY {
		return fmt.Errorf("mount %s: %w", nfsControl, err)
	}
	if !s.answering {
		questions := []question{{"auth.unix.ip", s.whoIs}, {"nfsd.fh", s.whereIs}, {"nfsd.export", s.mayHave}}
		if err := s.answer(questions); err != nil {
			return err
		}
		s.answering = true
	}
	if err := raiseNFS(nfsRecords); err != nil {
		return err
	}
	s.started = true
	return nil
}

// raiseNFS starts the kernel's server. It continues from the state in which an earlier attempt, of this agent or a
// killed one, left the server.
func raiseNFS(records string) error {
	if nfsListeners() == 0 { // when the server listens, the kernel refuses these settings
		for _, setting := range []struct{ file, value string }{
			{"versions", "-2 -3 +4 +4.1 +4.2"},
			{"nfsv4recoverydir", records}, // without it, the grace period cannot be ended
		} {
			if err := setNFS(setting.file, setting.value); err != nil {
				return err
			}
		}
		if err := nfsListen("127.0.0.1"); err != nil { // without an address it would listen on all
			return err
		}
	}
	serves := nfsServes()
	if !serves {
		if err := setNFS("threads", nfsThreads); err != nil {
			return err
		}
	}
	err := setNFS("v4_end_grace", "Y") // no client of an earlier server will reclaim its locks
	if serves {
		return nil // the grace period may have ended before
	}
	return err
}

func setNFS(file, value string) error {
	if err := os.WriteFile(nfsControl+"/"+file, []byte(value+"\n"), 0); err != nil {
		return fmt.Errorf("set the NFS server's %s to %s: %w", file, value, err)
	}
	return nil
}

// nfsServes reports whether the kernel's server has been started.
func nfsServes() bool {
	b, _ := os.ReadFile(nfsControl + "/threads")
	threads, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return threads > 0
}

// nfsListeners returns the number of addresses on which the kernel's server listens. No peer can reach the first.
func nfsListeners() int {
	b, _ := os.ReadFile(nfsControl + "/portlist")
	return strings.Count(string(b), "\n")
}

// nfsListen makes the kernel's server listen on an address.
func nfsListen(address string) error {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the kernel's server accepts only plain TCP
	listener, err := config.Listen(context.Background(), "tcp4", net.JoinHostPort(address, strconv.Itoa(nfsPort)))
	if err != nil {
		return err
	}
	defer listener.Close() // the kernel holds its own reference
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer file.Close()
	return setNFS("portlist", fmt.Sprint(file.Fd()))
}

// question is one of the kernel's caches that ask user space. The kernel writes a line whose words are the key, and
// expects a line as the answer.
type question struct {
	cache  string
	answer func(words []string) string
}

// answer answers the kernel's questions for ever. Reads of the channels do not block, so one poll waits for all of
// them.
func (s *nfsServer) answer(questions []question) error {
	fds := make([]unix.PollFd, len(questions))
	for i, q := range questions {
		fd, err := unix.Open("/proc/net/rpc/"+q.cache+"/channel", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			for _, opened := range fds[:i] {
				unix.Close(int(opened.Fd))
			}
			return fmt.Errorf("open channel of %s: %w", q.cache, err)
		}
		fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	go func() {
		for {
			if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
				s.log.Error("wait for the NFS server's questions", "error", err)
				return
			}
			for i, fd := range fds {
				if fd.Revents != 0 {
					s.answerOne(int(fd.Fd), questions[i])
				}
			}
		}
	}()
	return nil
}

func (s *nfsServer) answerOne(fd int, q question) {
	buf := make([]byte, 8192)
	n, err := unix.Read(fd, buf)
	if err != nil || n <= 0 {
		return
	}
	if reply := q.answer(strings.Fields(string(buf[:n]))); reply != "" {
		if _, err := unix.Write(fd, []byte(reply+"\n")); err != nil {
			s.log.Warn("answer the NFS server", "question", string(buf[:n]), "answer", reply, "error", err)
		}
	}
}

// domain is the kernel's name for all peers together.
const domain = "watari"

func (s *nfsServer) home() homeWanted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted
}

// whoIs answers "class address": peers belong to the domain, other addresses to none.
func (s *nfsServer) whoIs(words []string) string {
	if len(words) != 2 {
		return ""
	}
	reply := fmt.Sprintf("%s %s %d", words[0], words[1], never)
	if address, err := netip.ParseAddr(words[1]); err == nil {
		if strings.Contains(" "+s.home().peers, " "+address.Unmap().String()+" ") {
			reply += " " + domain
		}
	}
	return reply
}

// whereIs answers "domain type number": the file system with number 0 (type 1) is the home.
func (s *nfsServer) whereIs(words []string) string {
	if len(words) != 3 {
		return ""
	}
	reply := fmt.Sprintf("%s %s %s %d", words[0], words[1], words[2], never)
	if words[0] == domain && words[1] == "1" && words[2] == `\x00000000` {
		reply += " " + s.home().path
	}
	return reply
}

// mayHave answers "domain path": peers may mount the home and nothing else.
func (s *nfsServer) mayHave(words []string) string {
	if len(words) != 2 {
		return ""
	}
	w := s.home()
	reply := fmt.Sprintf("%s %s %d", words[0], words[1], never)
	if words[0] == domain && words[1] == w.path {
		flags := exportRootSquash | exportNoSubtreeCheck | exportFSID
		if !w.volume {
			flags |= exportAsync
		}
		reply += fmt.Sprintf(" %d %d %d 0", flags, w.uid, w.uid)
	}
	return reply
}

// mounted returns the type of the file system that was mounted last on a path; empty: none is mounted.
func mounted(path string) (kind string) {
	_, kind = mountedFrom(path)
	return kind
}

// knows reports whether the kernel supports a type of file system.
func knows(kind string) bool {
	b, _ := os.ReadFile("/proc/filesystems")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == kind {
			return true
		}
	}
	return false
}
