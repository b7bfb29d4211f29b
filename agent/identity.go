package agent

// identity.go - gives a guest its identity and its time, and watches whether its agent answers.

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/guest/peers"
	"watari/hostlink"
	"watari/internal/printable"
)

const (
	// checkEvery is the period of checks of a guest agent that answers.
	checkEvery = 15 * time.Second
	// askTimeout bounds one request to a guest agent.
	askTimeout = 5 * time.Second
	// identifyTimeout bounds the setting of an identity; a guest on a busy host is slow.
	identifyTimeout = 30 * time.Second
	// trustTime is how long a resumed guest counts as ready without an answer of its agent.
	trustTime = 10 * time.Second
)

// identityKeeper gives one guest its identity after each start and after each change of the identity. It sets the
// guest's clock after a restore or a move. It knows whether the guest is ready.
type identityKeeper struct {
	g       *guest
	channel GuestChannel
	client  watariv1connect.GuestServiceClient
	wake    chan struct{}

	mu      sync.Mutex
	isReady bool
	trusted time.Time // until then the guest counts as ready
	setTime bool      // the clock must be set
	given   []byte    // hash of the identity that the guest has
	hash    string    // the guest's own hash of its peers when it got that identity
	boot    string    // the guest kernel's boot id at that time
	memory  *v1.OutOfMemory
	cpu     cpuReadings
	list    string // hash of the list of guests that the guest must have
	stale   bool   // the guest has an earlier list
	refused string // why the guest refused its identity; of the keeper's goroutine alone
}

func newIdentityKeeper(g *guest) *identityKeeper {
	k := &identityKeeper{g: g, wake: make(chan struct{}, 1), setTime: true}
	k.channel = g.agent.config.Dial(g.uid, g.agent.channelSocket(g.uid))
	k.client = watariv1connect.NewGuestServiceClient(&http.Client{Transport: k.channel}, "http://guest", hostlink.GuestLimit())
	return k
}

// expect tells the keeper that the guest's identity may have changed; nil: there is none. The guest does not count as ready
// until it has the identity's list of guests: launchers would read an old list.
func (k *identityKeeper) expect(identity *v1.Identity) {
	if identity != nil {
		list := peers.Hash(identity.Peers, identity.HomeServer)
		k.mu.Lock()
		k.stale = k.stale || k.list != "" && k.list != list
		k.list = list
		k.mu.Unlock()
	}
	k.poke()
}

func (k *identityKeeper) poke() { poke(k.wake) }

// restarted tells the keeper that the guest was just started or restored.
func (k *identityKeeper) restarted() {
	k.mu.Lock()
	k.trusted = time.Time{}
	k.mu.Unlock()
	k.resumed()
}

// resumes tells the keeper that the guest is about to continue, perhaps after a move. Its agent stopped and continues with
// it, so the guest stays as ready as it was before the stop.
func (k *identityKeeper) resumes() {
	k.mu.Lock()
	k.trusted = time.Now().Add(trustTime)
	k.mu.Unlock()
}

// resumed tells the keeper that the guest has just continued. The keeper connects to its agent again, and sets its time and
// identity.
func (k *identityKeeper) resumed() {
	k.mu.Lock()
	k.isReady, k.setTime, k.given = false, true, nil
	k.mu.Unlock()
	k.channel.Close()
	k.poke()
}

func (k *identityKeeper) ready() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.stale && (k.isReady || time.Now().Before(k.trusted))
}

// answers reports whether the guest has its identity, and its agent answers calls. A guest that is ordered to end is no longer
// ready, but may answer.
func (k *identityKeeper) answers() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.given != nil || time.Now().Before(k.trusted)
}

func (k *identityKeeper) run(ctx context.Context) {
	defer k.channel.Close()
	wait := time.Duration(0)
	timer := time.NewTimer(checkEvery)
	for {
		identity := k.g.agent.identityOf(k.g.uid)
		next := checkEvery
		if identity != nil {
			begun := time.Now()
			err := k.check(ctx, identity)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				err = errors.New(printable.Line(err.Error(), 500)) // the guest may have chosen the text
				k.g.log.Debug("guest agent", "error", err, "took", time.Since(begun))
			}
			k.enter(err == nil, err)
			if err != nil {
				wait = min(max(2*wait, 50*time.Millisecond), time.Second)
				next = wait
			} else {
				wait = 0
			}
		} else {
			k.enter(false, nil)
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
			if next < checkEvery { // waking the keeper must not shorten the pause after a failed check
				select {
				case <-ctx.Done():
					return
				case <-timer.C:
				}
			}
		case <-timer.C:
			k.forceCheck()
		}
	}
}

func (k *identityKeeper) enter(ready bool, err error) {
	k.mu.Lock()
	changed := k.isReady != ready
	k.isReady = ready
	k.mu.Unlock()
	if changed {
		k.g.log.Info("guest agent", "ready", ready, "reason", err)
		k.g.agent.publish()
	}
}

// forceCheck makes the next round ask the guest even if nothing changed.
func (k *identityKeeper) forceCheck() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.boot = ""
}

const tooOldToMount = "the guest agent in its image is too old to mount storage; build the image again"

// check gives the guest the identity, unless the guest already has it.
func (k *identityKeeper) check(ctx context.Context, identity *v1.Identity) error {
	sum := identityHash(identity)
	k.mu.Lock()
	given, setTime, boot, hash := k.given, k.setTime, k.boot, k.hash
	k.mu.Unlock()
	if bytes.Equal(given, sum) && !setTime && boot != "" {
		return nil // the guest already has the identity
	}
	askCtx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	asked := time.Now()
	described, err := k.client.Describe(askCtx, connect.NewRequest(&v1.DescribeRequest{}))
	if err != nil {
		return fmt.Errorf("ask the guest agent: %w", err)
	}
	d := described.Msg
	drifted := clockIsOff(d.GetNow(), asked, time.Now())
	if err := checkAnswer(d); err != nil {
		return err
	}
	k.noteMemory(d.GetOutOfMemory())
	k.mu.Lock()
	k.cpu.add(d.GetCpuTimes(), time.Now())
	k.mu.Unlock()
	if len(identity.Mounts) > 0 && !d.MountsStorage {
		k.g.setStep("%s", tooOldToMount)
		return errors.New(tooOldToMount)
	}
	if (setTime || drifted) && d.GuestUid != "" {
		setCtx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		_, err := k.client.SetTime(setCtx, connect.NewRequest(&v1.SetTimeRequest{Now: timestamppb.Now()}))
		if err != nil && setTime {
			return fmt.Errorf("set the guest's clock: %w", err)
		} else if err != nil {
			k.g.log.Debug("the guest's clock was not set", "error", err) // it is tried again
		}
	}
	same := bytes.Equal(given, sum) && d.GuestUid == identity.GuestUid && d.Epoch == identity.Epoch && d.PeersHash == hash
	if !same {
		full := proto.CloneOf(identity)
		full.Entropy = make([]byte, 64)
		rand.Read(full.Entropy)
		if k.refused == "" {
			k.g.setStep("giving the guest its identity")
		}
		identifyCtx, cancel := context.WithTimeout(ctx, identifyTimeout)
		defer cancel()
		answer, err := k.client.Identify(identifyCtx, connect.NewRequest(&v1.IdentifyRequest{Identity: full, Now: timestamppb.Now()}))
		if err != nil {
			err = fmt.Errorf("give the guest its identity: %w", err)
			k.refused = printable.Line(err.Error(), 300) // the guest may have chosen the text
			k.g.setStep("%s", k.refused)
			return err
		}
		k.refused = ""
		k.g.setStep("")
		d = answer.Msg.Description
		if err := checkAnswer(d); err != nil {
			return err
		}
	}
	k.mu.Lock()
	k.given, k.setTime, k.boot, k.hash = sum, false, d.GetBootId()+"/", d.GetPeersHash()
	renewed := k.stale && k.list == peers.Hash(identity.Peers, identity.HomeServer)
	if renewed {
		k.stale = false
	}
	k.mu.Unlock()
	if renewed {
		k.g.agent.publish()
	}
	return nil
}

// mostOff is the difference between the clocks of guest and host up to which the guest's is not set, beside what the call itself took.
const mostOff = time.Second

// clockIsOff reports whether a guest's clock, which was read between two times of the host, differs from the host's. A guest's clock
// drifts, and one whose guest was moved to a host with another frequency may run much too fast.
func clockIsOff(guest *timestamppb.Timestamp, asked, answered time.Time) bool {
	if guest == nil {
		return false
	}
	now := guest.AsTime()
	return now.Before(asked.Add(-mostOff)) || now.After(answered.Add(mostOff))
}

// checkAnswer refuses an answer of which the keeper would keep too much.
func checkAnswer(d *v1.DescribeResponse) error {
	const most = 256 // bytes; a boot id and a hash have fewer
	if len(d.GetBootId()) > most || len(d.GetPeersHash()) > most {
		return errors.New("the guest agent's answer has a boot id or a hash that is too long")
	}
	return nil
}

// identityHash returns a hash of an identity without its entropy.
func identityHash(identity *v1.Identity) []byte {
	c := proto.CloneOf(identity)
	c.Entropy = nil
	data, _ := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	sum := sha256.Sum256(data)
	return sum[:]
}
