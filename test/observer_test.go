package test

// observer_test.go - watches during all tests that no guest runs twice.

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"watari/test/evidence"
)

// lookPause is the time between two checks of all QEMU processes.
const lookPause = 100 * time.Millisecond

// If a guest has had two processes for overlapAfter, the observer asks the manager each askPause whether the guest
// moves.
const (
	overlapAfter = 30 * time.Second
	askPause     = 10 * time.Second
)

// observer records violations of the rule that a guest never runs twice. evidence.Judge describes what it can and cannot
// see. It sees the QEMU processes of this machine, but not those inside whole hosts, so there is no observer with whole
// hosts. Where the observer cannot see, settled and copies check from time to time.
type observer struct {
	system     *system
	stop, done chan struct{}

	mu       sync.Mutex
	fresh    []string // violations for which no test has failed yet
	reported int      // number of violations for which tests have failed
	looks    int
	longest  time.Duration   // longest time between two checks
	guests   map[string]bool // guests that were seen
	doubled  map[string]bool // guests of which two processes were seen
}

// watching is the observer; nil with whole hosts.
var watching *observer

// observe starts the observer.
func observe(s *system) error {
	if wholeHosts {
		fmt.Println("== not watched: whether a guest runs twice, for QEMU's processes are inside of whole hosts")
		return nil
	}
	proc, err := evidence.OpenProc(labName)
	if err != nil {
		return err
	}
	watching = &observer{system: s, stop: make(chan struct{}), done: make(chan struct{}),
		guests: map[string]bool{}, doubled: map[string]bool{}}
	go watching.watch(proc)
	return nil
}

func (o *observer) watch(proc *evidence.Proc) {
	defer close(o.done)
	var judge evidence.Judge
	last, asked, answers := time.Now(), time.Now(), make(chan map[string]bool, 1)
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	for {
		select {
		case <-o.stop:
			return
		case moving := <-answers:
			now := time.Now()
			for _, uid := range judge.Overlaps(now, overlapAfter) {
				o.add(judge.Moves(now, uid, moving[uid]))
			}
		case <-tick.C:
			now := time.Now()
			guests, err := proc.Look()
			if err != nil {
				o.tell(fmt.Sprintf("%s QEMU's processes cannot be looked at: %v", now.Format(time.TimeOnly), err))
				continue
			}
			o.note(now.Sub(last), guests)
			last = now
			o.add(judge.See(now, guests))
			if now.Sub(asked) >= askPause && len(judge.Overlaps(now, overlapAfter)) > 0 {
				asked = now
				go o.askForMoves(answers) // in a goroutine, because the answer takes time
			}
		}
	}
}

// note records statistics for the end.
func (o *observer) note(pause time.Duration, guests []evidence.Guest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	o.longest = max(o.longest, pause)
	for _, g := range guests {
		o.guests[g.UID] = true
		if len(g.Copies) > 1 {
			o.doubled[g.UID] = true
		}
	}
}

func (o *observer) add(found []evidence.Violation) {
	for _, v := range found {
		o.tell(v.String())
	}
}

func (o *observer) tell(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fresh = append(o.fresh, what)
}

// askForMoves asks the manager which guests are moving. If the manager does not answer, nothing is sent.
func (o *observer) askForMoves(answers chan<- map[string]bool) {
	out, err := o.system.watari(askPause/2, "-o", "json", "migrate", "list")
	var moves []struct{ GuestUID string }
	if err != nil || json.Unmarshal([]byte(out), &moves) != nil {
		return
	}
	moving := map[string]bool{}
	for _, m := range moves {
		moving[m.GuestUID] = true
	}
	answers <- moving
}

// take returns the violations for which no test has failed yet.
func (o *observer) take() (fresh []string) {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	fresh, o.fresh = o.fresh, nil
	return fresh
}

// check fails the test if there are new violations since the last check.
func (o *observer) check(t *testing.T) {
	t.Helper()
	for _, what := range o.take() {
		t.Errorf("never two: %s", what)
		o.reported++
	}
}

// saw fails the test if a guest was never seen, because then its violations could not be seen either.
func (o *observer) saw(t *testing.T, uid string) {
	t.Helper()
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.guests[uid] {
		t.Errorf("never two: no process of guest %s was seen on a host of lab %s: is it in no control group of the lab's?", uid, labName)
	}
}

// end stops the observer, logs what it has watched, and returns whether there are violations for which no test has
// failed.
func (o *observer) end() (unreported bool) {
	if o == nil {
		return false
	}
	close(o.stop)
	<-o.done
	left := o.take()
	fmt.Printf("== never two: %d looks, at most %v apart, at %d guests, of which %d had two processes at a time: %d violations\n",
		o.looks, o.longest.Round(time.Millisecond), len(o.guests), len(o.doubled), o.reported+len(left))
	for _, what := range left {
		fmt.Println("FAIL: never two:", what)
	}
	return len(left) > 0
}

// A test of the alarm: a process with a guest's uid, outside all hosts, is reported as running beside the guest.
func TestASecondCopyOfAGuestIsSeen(t *testing.T) {
	if watching == nil {
		t.Skip("needs the observer, which is not there on whole hosts")
	}
	newCluster(t, "alarm", 1)
	settled(t, "alarm", 1)
	uid := guestNamed(t, "alarm-0").Meta.UID
	stray := exec.Command("qemu-system-x86_64", "-name", "guest=watari-alarm-0,debug-threads=on", "-uuid", uid,
		"-nodefaults", "-display", "none", "-m", "32", "-accel", "tcg") // its firmware searches for a boot device
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stray.Process.Kill()
		stray.Wait()
	}()
	until(t, 30*time.Second, "the second copy is seen", func() (bool, string) {
		found := strings.Join(watching.take(), "\n")
		return strings.Contains(found, "guest alarm-0 ("+uid+"): two copies run") && strings.Contains(found, fmt.Sprintf("process %d", stray.Process.Pid)), found
	})
}
