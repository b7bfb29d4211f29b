package machine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// chance plays a world at random.
type chance struct {
	*world
	r          *rand.Rand
	generation uint64
	highest    uint64    // epoch ordered so far
	late       time.Time // when a create with an unknown outcome happens; zero: none is waiting
	ended      map[uint64]string
	term       uint64          // the latest manager's
	released   map[uint64]bool // epochs whose failure the manager was told from memory, and believed
}

// TestChance plays random sequences: orders of all kinds, acts that succeed, fail or have an unknown outcome, domains that
// change by themselves, crashes. The world checks that no act breaks a rule, and look checks that no report is untrue. The
// same seed gives the same acts.
func TestChance(t *testing.T) {
	for seed := range uint64(400) {
		first, again := playChance(t, seed), playChance(t, seed)
		if !slices.Equal(first, again) {
			t.Fatalf("seed %d: the same inputs had different acts", seed)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func playChance(t *testing.T, seed uint64) []string {
	c := &chance{world: newWorld(t), r: rand.New(rand.NewPCG(seed, 1)), ended: map[uint64]string{}, released: map[uint64]bool{}}
	for range 300 {
		c.turn()
		c.look()
		if t.Failed() {
			t.Fatalf("seed %d; done:\n%s", seed, strings.Join(c.done, "\n"))
		}
	}
	return c.done
}

func (c *chance) turn() {
	if !c.late.IsZero() && !c.now.Before(c.late) {
		c.late, c.creating = time.Time{}, nil
		c.becomes(guestUID, domain.Running)
	}
	switch n := c.r.IntN(100); {
	case n < 65 && len(c.acts) > 0:
		c.endOne(c.acts[c.r.IntN(len(c.acts))])
	case n < 80:
		c.now = c.now.Add(time.Duration(c.r.IntN(3000)) * time.Millisecond)
		c.m.Tick(c.now)
		c.collect()
	case n < 90:
		c.order()
	case n < 93:
		c.change()
	case n < 95:
		c.m.Admit(c.now, guestUID, "m", uint64(n))
		c.collect()
	case n < 96:
		c.m.HypervisorLost(c.now)
		c.collect()
	case n < 97:
		c.m.Tunnel(c.now, guestUID, "m", false)
		c.collect()
	case n < 99:
		c.full = !c.full
	default:
		if c.domains[guestUID] == domain.Incoming { // its tunnel ends with the agent
			delete(c.domains, guestUID)
		}
		c.crash()
	}
}

// endOne ends an act, not always successfully.
func (c *chance) endOne(a Act) {
	defer delete(c.fails, a.Kind)
	if c.r.IntN(8) == 0 {
		switch a.Kind {
		case Start:
			if c.r.IntN(2) == 0 { // the create may happen later; the machine does not know
				c.started[fmt.Sprint(a.Guest, " ", a.Wanted.Epoch)] = true
				if c.r.IntN(2) == 0 {
					c.late = c.now.Add(time.Duration(c.r.IntN(15000)) * time.Millisecond)
					if c.r.IntN(2) == 0 {
						c.creating, c.late = []string{guestUID}, c.late.Add(time.Minute)
					}
				}
				c.fails[Start] = Result{Err: errors.New("lost"), Uncertain: true}
			} else {
				c.fails[Start] = Result{Err: errors.New("no"), Unforked: !a.Plain}
			}
		case WriteRecord:
			c.disk[a.Guest], c.landed = a.Record, true
			c.fails[a.Kind] = Result{Err: errors.New("no")}
		case KeepTerm:
			c.term = a.Term
			c.fails[a.Kind] = Result{Err: errors.New("no")}
		case Destroy, Prepare, Send, Resume, AllowIncoming, Forget, Busy, List, ReadRecord:
			c.fails[a.Kind] = Result{Err: errors.New("no")}
		}
	}
	if a.Kind == Confirm && len(c.domains) > 0 {
		c.fails[Confirm] = Result{PIDs: []int{42}}
	}
	c.end(a)
}

func (c *chance) order() {
	c.generation++
	role := []v1.GuestRole{run, run, absent, incoming, outgoing}[c.r.IntN(5)]
	epoch := c.highest
	if epoch == 0 || c.r.IntN(4) == 0 && (role == run || role == incoming) {
		c.highest++
		epoch = c.highest
	} else if c.r.IntN(8) == 0 && epoch > 1 {
		epoch--
	}
	o := orders(c.generation)
	o.Term += uint64(c.r.IntN(2))
	if c.term = max(c.term, o.Term); o.Term == c.term && c.released[epoch] && role != absent {
		c.highest++ // the latest manager knows that the epoch has failed; an earlier manager does not
		epoch = c.highest
	}
	if c.r.IntN(10) > 0 {
		o.Guests = append(o.Guests, wish(role, epoch))
	}
	c.take(o)
}

// change changes a domain as the hypervisor would.
func (c *chance) change() {
	state, here := c.domains[guestUID]
	switch {
	case here && c.r.IntN(2) == 0:
		c.becomes(guestUID, domain.Absent)
	case state == domain.Incoming:
		c.becomes(guestUID, domain.Paused)
	case !here && c.disk[guestUID] != nil && c.disk[guestUID].Phase == PhaseReceiving && c.m.guests[guestUID].tunnel != "":
		c.becomes(guestUID, domain.Incoming)
	}
}

// look checks the report: an ended epoch has ended for good, and no copy of it exists or may appear.
func (c *chance) look() {
	o := c.m.Report(c.now)
	for _, g := range o.Guests {
		if r := c.disk[guestUID]; g.Condition == v1.GuestCondition_GUEST_CONDITION_FAILED && (r == nil || r.Epoch != g.Epoch || r.Phase != PhaseEnded || c.landed) {
			// A failure that is not on disk is believed only of an agent that is bound to the latest manager.
			if o.Term != c.term {
				continue
			}
			c.released[g.Epoch] = true
		}
		switch g.Condition {
		case v1.GuestCondition_GUEST_CONDITION_GONE, v1.GuestCondition_GUEST_CONDITION_FAILED, v1.GuestCondition_GUEST_CONDITION_SENT:
			if c.ended[g.Epoch] == "" && (c.domains[guestUID] == domain.Running || !c.late.IsZero()) {
				c.t.Errorf("epoch %d is reported %v, and its domain is %q, or may come", g.Epoch, g.Condition, c.domains[guestUID])
			}
			c.ended[g.Epoch] = g.Condition.String()
		case v1.GuestCondition_GUEST_CONDITION_RUNNING:
			if r := c.disk[guestUID]; c.ended[g.Epoch] != "" && r != nil && r.Phase != PhaseEnded && c.domains[guestUID] == domain.Running {
				c.t.Errorf("epoch %d runs after it was %s", g.Epoch, c.ended[g.Epoch])
			}
		}
	}
}
