package machine

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// The dialogues in testdata/dialogues have commands and the acts that follow from them. `go test ./agent/machine -rewrite`
// writes the answers anew; read the difference. Acts wait until a command ends them:
//
//	take RUN 5 [term=1] [gen=1] [boot=b1] [migration=m] [cancel]    orders; "take nothing" mentions no guest
//	end <act> [err=text | full | ...]     ends the oldest act of that kind, successfully where nothing else is said
//	go [until=<act_kind>]                 ends acts until none is left, or until the next is of that kind
//	domain running                        the domain changes by itself, and an event says so
//	wait 5s                               time passes; acts that become due are ended
//	world full | down | unreadable | unforked | creating | fine
//	crash [boot=b2]    admit 7    tunnel closed    lost    evict
//	report
func TestDialogues(t *testing.T) {
	datadriven.Walk(t, "testdata/dialogues", func(t *testing.T, path string) {
		w := newWorld(t)
		w.run(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.t = t
			w.done = nil
			from := w.m.lastID
			if answer := dialogue(w, d); answer != "" {
				return answer
			}
			return w.told(from)
		})
	})
}

// told lists the acts that were ended, and those that wait.
func (w *world) told(from uint64) string {
	var b strings.Builder
	for i := 0; i < len(w.done); {
		times := 1
		for i+times < len(w.done) && w.done[i+times] == w.done[i] {
			times++
		}
		b.WriteString(w.done[i])
		if times > 1 {
			fmt.Fprintf(&b, " (%d times)", times)
		}
		b.WriteString("\n")
		i += times
	}
	for _, a := range w.acts {
		if a.ID > from {
			fmt.Fprintf(&b, "-> %s\n", actText(a))
		}
	}
	if b.Len() == 0 {
		return "-"
	}
	return b.String()
}

var roles = map[string]v1.GuestRole{"RUN": run, "ABSENT": absent, "INCOMING": incoming, "OUTGOING": outgoing}

// dialogue carries out a command. A command that shows no acts gives its own answer.
func dialogue(w *world, d *datadriven.TestData) string {
	word := func(i int) string {
		if i < len(d.CmdArgs) {
			return d.CmdArgs[i].Key
		}
		return ""
	}
	switch d.Cmd {
	case "take":
		if err := w.take(dialogueOrders(d)); err != nil {
			return err.Error()
		}
	case "end":
		return dialogueEnd(w, d)
	case "go":
		var until string
		d.MaybeScanArgs(w.t, "until", &until)
		until = strings.ReplaceAll(until, "_", " ")
		for len(w.acts) > 0 && (until == "" || string(w.acts[0].Kind) != until) {
			w.step()
		}
	case "domain":
		w.becomes(guestUID, domain.State(word(0)))
	case "wait":
		long, err := time.ParseDuration(word(0))
		if err != nil {
			return err.Error()
		}
		end := w.now.Add(long)
		w.run(long)
		w.now = end
	case "world":
		w.full, w.unreadable, w.unforked, w.down, w.creating = false, false, false, nil, nil
		switch word(0) {
		case "full":
			w.full = true
		case "unreadable":
			w.unreadable = true
		case "unforked":
			w.unforked = true
		case "down":
			w.down = errors.New("it is down")
		case "creating":
			w.creating = []string{guestUID}
		}
		return "ok"
	case "crash":
		if d.HasArg("boot") {
			d.ScanArgs(w.t, "boot", &w.boot)
			clear(w.domains)
		}
		w.crash()
	case "admit":
		var connection uint64
		if _, err := fmt.Sscan(word(0), &connection); err != nil {
			return err.Error()
		}
		w.m.Admit(w.now, guestUID, "m", connection)
		w.collect()
	case "tunnel":
		w.m.Tunnel(w.now, guestUID, "m", word(0) == "open")
		w.collect()
	case "lost":
		w.m.HypervisorLost(w.now)
		w.collect()
	case "evict":
		w.m.Evict(w.now)
		w.collect()
	case "report":
		return w.reportText()
	default:
		return "unknown command " + d.Cmd
	}
	return ""
}

func dialogueOrders(d *datadriven.TestData) *v1.HostWanted {
	o := orders(1)
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "term":
			fmt.Sscan(arg.Vals[0], &o.Term)
		case "gen":
			fmt.Sscan(arg.Vals[0], &o.Generation)
		case "boot":
			o.BootId = arg.Vals[0]
		}
	}
	if role, ok := roles[d.CmdArgs[0].Key]; ok {
		var epoch uint64
		fmt.Sscan(d.CmdArgs[1].Key, &epoch)
		g := wish(role, epoch)
		if d.HasArg("cancel") {
			g.Migration.Cancel = true
		}
		o.Guests = append(o.Guests, g)
	}
	return o
}

// dialogueEnd ends an act. Arguments say how; the words before them are the act's kind.
func dialogueEnd(w *world, d *datadriven.TestData) string {
	var kind []string
	result, fails := Result{}, false
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "err":
			result.Err, fails = errors.New(strings.Join(arg.Vals, ", ")), true
		case "full":
			result.Err, fails = syscall.ENOSPC, true
		case "final":
			result.Final = true
		case "uncertain":
			result.Uncertain = true
		case "still":
			result.Busy, fails = true, true
		case "pid":
			result.PIDs, fails = []int{42}, true
		case "empty": // a listing with no domain in it
			fails = true
		case "damaged":
			result.Damaged, fails = true, true
		default:
			kind = append(kind, arg.Key)
		}
	}
	name := Kind(strings.Join(kind, " "))
	for _, a := range w.acts {
		if a.Kind == name {
			if fails {
				w.fails[name] = result
			}
			w.end(a)
			delete(w.fails, name)
			w.done = nil
			return ""
		}
	}
	return fmt.Sprintf("no such act is under way: %s", name)
}

func (w *world) reportText() string {
	o := w.m.Report(w.now)
	var b strings.Builder
	fmt.Fprintf(&b, "term %d generation %d\n", o.Term, o.Generation)
	for _, g := range o.Guests {
		fmt.Fprintf(&b, "%s %d %s", strings.TrimLeft(g.Uid, "0"), g.Epoch, strings.TrimPrefix(g.Condition.String(), "GUEST_CONDITION_"))
		if g.Process {
			b.WriteString(", a process unless none is seen")
		}
		if g.Step != "" {
			fmt.Fprintf(&b, ", step: %s", g.Step)
		}
		if g.Message != "" {
			fmt.Fprintf(&b, ", %s", g.Message)
		}
		b.WriteString("\n")
	}
	for _, p := range o.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	return b.String()
}
