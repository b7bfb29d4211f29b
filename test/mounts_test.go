package test

// mounts_test.go - folders of an outside file server: an NFS server beside the lab.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// outsideServer is an NFS server on this machine.
type outsideServer struct {
	address string
	port    int
	folder  string // directory that it exports as /data
	process *os.Process
}

// fileServer runs an NFS server until the test ends.
func fileServer(t *testing.T) (s outsideServer) {
	t.Helper()
	if wholeHosts {
		t.Skip("whole hosts do not reach a file server on this machine")
	}
	program, err := exec.LookPath("ganesha.nfsd")
	if err != nil {
		t.Skip("nfs-ganesha is not installed (apt-get install nfs-ganesha nfs-ganesha-vfs)")
	}
	agents := processesOn("a1", "watari-agent --manager")
	if len(agents) == 0 {
		t.Fatal("host a1 has no agent")
	}
	words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", agents[0]))
	manager := regexp.MustCompile(`https://([0-9.]+):`).FindSubmatch(words)
	if manager == nil {
		t.Fatalf("the agent of host a1 does not say where the manager is: %q", words)
	}
	home := t.TempDir()
	s.address, s.port, s.folder = string(manager[1]), 20490, filepath.Join(home, "data")
	for _, dir := range []string{s.folder, filepath.Join(s.folder, "in"), filepath.Join(home, "state")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(s.folder, 0o777); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(home, "ganesha.conf")
	text := fmt.Sprintf(`NFS_Core_Param { Protocols = 4; NFS_Port = %d; Enable_NLM = false; Enable_RQUOTA = false; }
NFSv4 { Grace_Period = 5; Lease_Lifetime = 10; RecoveryBackend = fs; RecoveryRoot = %q; }
EXPORT { Export_Id = 1; Path = %q; Pseudo = /data; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4; Transports = TCP; FSAL { Name = VFS; } }
`, s.port, filepath.Join(home, "state"), s.folder)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(home, "log")
	server := exec.Command(program, "-F", "-f", config, "-L", log, "-p", filepath.Join(home, "pid"))
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
		if t.Failed() {
			said, _ := os.ReadFile(log)
			t.Logf("the file server says at last:\n%s", said[max(0, len(said)-2000):])
		}
	})
	s.process = server.Process
	return s
}

func lines(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

func TestAFolderOfAFileServer(t *testing.T) {
	hostsReady(t)
	server := fileServer(t)
	data, folder := server.address+":/data", server.folder
	create := func(name string, more ...string) []string {
		return append([]string{"cluster", "create", name, "--memory", "256M", "--image", imageName}, more...)
	}
	refused(t, []string{"may not mount " + data, "watari storage allow"}, create("depot", "--mount", data+":/data")...)
	must(t, "storage", "allow", "depot", data, "--port", strconv.Itoa(server.port))
	t.Cleanup(func() { _, _ = shared.watari(time.Minute, "storage", "forbid", "depot", "--force") })
	newCluster(t, "depot", 2, "--site", "a", "--spread", "host", "--mount", data+":/data", "--mount", data+"/in:/input:ro")
	newCluster(t, "other", 1, "--site", "a")

	// Only the guests that mount the folder reach the server, and a read-only mount stays read-only.
	if out, err := shared.watari(time.Minute, "guest", "exec", "other-0", "--", "bash", "-c", "exec timeout 2 bash -c '</dev/tcp/169.254.77.1/7200'"); err == nil {
		t.Errorf("a guest of another cluster reaches the file server: %s", out)
	}
	if out, err := shared.watari(time.Minute, "guest", "exec", "depot-0", "--", "touch", "/input/x"); err == nil || !strings.Contains(out, "Read-only") {
		t.Errorf("a folder that is mounted read-only is written: %v %s", err, out)
	}

	// A program that checks itself writes during moves, a kill of an agent, and a pause of the server.
	const count, many = 80, 1000
	const program = "exec 3</input/numbers; n=0; while read x <&3; do n=$((n+1)); test $x = $n || exit 8; echo $n >>/data/out; test $(wc -l </data/out) = $n || exit 9; test $n != 1 || echo begun; sleep 0.05; done; echo $n in all"
	var numbers strings.Builder
	for i := range many {
		fmt.Fprintln(&numbers, i+1)
		name := map[int]string{count: "numbers", many: "many"}[i+1]
		if name == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(folder, "in", name), []byte(numbers.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(folder, "out")
	must(t, "run", "depot", "--name", "depot-run", "-n", "1", "--detach", "--", "sh", "-c", program)
	started(t, "depot-run")
	for _, name := range []string{"depot-0", "depot-1"} {
		to := map[string]string{"a1": "a2", "a2": "a1"}[guestNamed(t, name).Host]
		must(t, "migrate", name, "--to", to)
	}
	mustKill(t, "a1", "watari-agent --manager")
	signalAll(t, []int{server.process.Pid}, syscall.SIGSTOP)
	time.Sleep(3 * time.Second)
	signalAll(t, []int{server.process.Pid}, syscall.SIGCONT)
	if said := must(t, "run", "logs", "--follow", "depot-run"); !strings.Contains(said, fmt.Sprintf("%d in all", count)) || lines(t, out) != count {
		t.Errorf("the program says %q, and the server has %d lines", said, lines(t, out))
	}

	// A program with open files is restored from a checkpoint, although it has used the server since.
	hostsReady(t)
	settled(t, "depot", 2)
	must(t, "run", "depot", "--name", "depot-read", "-n", "1", "--detach", "--",
		"sh", "-c", "exec 3</input/many 4>>/data/seen; n=0; while read x <&3; do n=$((n+1)); test $x = $n || exit 8; echo $n >&4 || exit 9; test $n != 1 || echo begun; test -e /tmp/fast || sleep 0.2; done; echo $n in all")
	started(t, "depot-read")
	checkpointed(t, "depot")
	seen := filepath.Join(folder, "seen")
	before := lines(t, seen)
	until(t, time.Minute, "the program goes on after the checkpoint", func() (bool, string) { return lines(t, seen) > before+8, "" })
	restores := 1
	if os.Getenv("WATARI_TEST_FULL") != "" {
		restores = 2 // at the second restore, the server also knows a guest that is newer than the checkpoint's
	}
	for range restores {
		must(t, "checkpoint", "restore", "depot")
		settled(t, "depot", 2)
		before, begun := lines(t, seen), time.Now()
		until(t, time.Minute, "the program writes on after the restore", func() (bool, string) { return lines(t, seen) > before+8, "" })
		t.Logf("it has written 9 more lines %.1f s after the cluster is back", time.Since(begun).Seconds())
	}
	for _, name := range []string{"depot-0", "depot-1"} {
		must(t, "guest", "exec", name, "--", "touch", "/tmp/fast")
	}
	if said := must(t, "run", "logs", "--follow", "depot-read"); !strings.Contains(said, fmt.Sprintf("%d in all", many)) {
		t.Errorf("the program that went back says %q", said)
	}

	refused(t, []string{"mounted in depot"}, "storage", "forbid", "depot")
	must(t, "storage", "forbid", "depot", "--force")
	until(t, 30*time.Second, "the folder is taken from the guests", func() (bool, string) {
		out, err := shared.watari(20*time.Second, "guest", "exec", "depot-0", "--", "sh", "-c", "! grep -q nfs4.*port=7200 /proc/mounts")
		return err == nil, out
	})
}
