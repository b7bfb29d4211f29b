package agent

// volume_move.go - moves of volumes: the copy that this host sends while guests use the disk, the hand-over, and the copies
// that this host receives.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/agent/volume"
	v1 "watari/api/watariv1"
)

const (
	// handOverTime is how long guests may wait for the hand-over of their volume.
	handOverTime = 15 * time.Second
	// sendAgain is the pause after a copy has failed, for each failure. After sendFailures the manager is told, which ends the
	// move. A complete copy clears the count.
	sendAgain    = 3 * time.Second
	sendFailures = 5
	// handOverFailures is the number of hand-overs of one move that may fail, because the rest of the copy takes too long.
	handOverFailures = 3
	// sendStalls is how long a copy may make no progress.
	sendStalls = time.Minute
	// copiedStep is the step in which progress is reported.
	copiedStep = 16 << 20
)

// sending is the copying of a volume's disk to another host. Only the goroutine that works on the volume uses it, except for
// seen.
type sending struct {
	order    *v1.VolumeTransfer
	cancel   context.CancelFunc // of the connection to the other host; nil: the copy has not begun
	ended    chan error         // gets the end of the connection. The daemon itself finds it only with the next write.
	again    time.Time          // no attempt before
	failures int
	refused  int       // hand-overs that have failed
	copied   uint64    // as last seen
	since    time.Time // when copied has changed
	// unsure: the record that the disk was given up may be on the host's disk, or not.
	unsure bool
	seen   *v1.VolumeSending // for reports; replaced as a whole under volumeKeeper.mu
}

// heldCopy is a copy of a volume that another host sends, or has sent.
type heldCopy struct {
	facts volume.Facts
	ready bool
	tries
	working bool
}

func sameTransfer(a, b *v1.VolumeTransfer) bool {
	return a.GetMove() == b.GetMove() && a.GetCopy() == b.GetCopy() && proto.Equal(a.GetHost(), b.GetHost())
}

// say changes the report of a copy that is being sent.
func (k *volumeKeeper) say(s *sending, change func(seen *v1.VolumeSending)) {
	k.mu.Lock()
	before := s.seen
	s.seen = proto.CloneOf(before)
	change(s.seen)
	changed := !proto.Equal(before, s.seen)
	k.mu.Unlock()
	if changed {
		k.agent.publish()
	}
}

// send follows the order to send a volume to another host. It returns an error if the disk is not served any more.
func (k *volumeKeeper) send(ctx context.Context, w *v1.VolumeWanted, v *heldVolume, disk *volume.Disk) error {
	s := v.sending
	if s != nil && (w.Send == nil || !sameTransfer(s.order, w.Send)) {
		s.stop()
		if err := disk.EndSending(); err != nil {
			return nil // it is tried again
		}
		k.setSending(v, nil)
		s = nil
	}
	if w.Send == nil {
		return nil
	}
	if s == nil {
		s = &sending{order: w.Send, seen: &v1.VolumeSending{Move: w.Send.Move, Copy: w.Send.Copy}}
		k.setSending(v, s)
	}
	if s.cancel == nil {
		if time.Now().Before(s.again) {
			return nil
		}
		if err := k.beginSending(w.Uid, s, disk); err != nil {
			k.sendFailed(s, disk, err)
			return nil
		}
	}
	select {
	case err := <-s.ended:
		k.sendFailed(s, disk, fmt.Errorf("the connection to host %s has ended: %w", s.order.Host.GetName(), err))
		return nil
	default:
	}
	now, err := disk.Sending()
	switch {
	case err != nil:
		return nil // the daemon is asked again
	case now.Error != nil:
		k.sendFailed(s, disk, now.Error)
		return nil
	case now.Copied != s.copied || now.Ready:
		s.copied, s.since = now.Copied, time.Now()
	case time.Since(s.since) > sendStalls:
		k.sendFailed(s, disk, fmt.Errorf("host %s has taken nothing for %s", s.order.Host.GetName(), sendStalls))
		return nil
	}
	if now.Ready {
		s.failures = 0
	}
	k.say(s, func(seen *v1.VolumeSending) {
		seen.Ready, seen.CopiedBytes, seen.TotalBytes = now.Ready, now.Copied/copiedStep*copiedStep, now.Total/copiedStep*copiedStep
		if now.Ready {
			seen.Message, seen.Failed = "", s.refused >= handOverFailures
		}
	})
	if now.Ready && w.Send.HandOver {
		return k.handOver(ctx, w.Uid, v, disk)
	}
	return nil
}

func (k *volumeKeeper) setSending(v *heldVolume, s *sending) {
	k.mu.Lock()
	v.sending = s
	k.mu.Unlock()
	k.agent.publish()
}

// stop closes the connection to the other host.
func (s *sending) stop() {
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
}

// beginSending connects the daemon to the other host, and begins the copy.
func (k *volumeKeeper) beginSending(uid string, s *sending, disk *volume.Disk) error {
	if err := disk.EndSending(); err != nil { // one that an earlier agent has begun
		return err
	}
	path := filepath.Join(k.sockets, uid, "move.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer listener.Close() // the daemon connects once
	user, _ := k.host.QEMUUser()
	if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, user.UID, user.GID)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(k.agent.ctx)
	ended := make(chan error, 1)
	s.cancel, s.ended = cancel, ended
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		err = k.host.Carry(ctx, conn, s.order.Host, copyKey(uid, s.order.Move)+"/"+s.order.Copy)
		ended <- cmp.Or(err, io.EOF)
		poke(k.wake)
	}()
	s.copied, s.since = 0, time.Now()
	return disk.Send(path)
}

// sendFailed notes that a copy has failed. It is begun again after a pause.
func (k *volumeKeeper) sendFailed(s *sending, disk *volume.Disk, err error) {
	s.stop()
	_ = disk.EndSending() // beginSending does it again
	s.failures++
	s.again = time.Now().Add(time.Duration(s.failures) * sendAgain)
	k.log.Warn("a volume is not copied to another host", "host", s.order.Host.GetName(), "error", err)
	k.say(s, func(seen *v1.VolumeSending) {
		seen.Ready, seen.HandsOver, seen.CopiedBytes, seen.Message, seen.Failed = false, false, 0, err.Error(), s.failures >= sendFailures || s.refused >= handOverFailures
	})
}

// mayHandOver reports whether the present orders let a volume be given up. k.mu is held.
func (k *volumeKeeper) mayHandOver(uid string, order *v1.VolumeTransfer) bool {
	return slices.ContainsFunc(k.orders.Volumes, func(w *v1.VolumeWanted) bool {
		return w.Uid == uid && w.Send.GetHandOver() && sameTransfer(w.Send, order) && w.Restore == nil && !w.Discard
	})
}

// handOver closes a volume to guests, completes its copy, and records that this host has given the disk up. From then on, the
// host does not serve the disk. It returns an error if the disk is not served any more, also when it is served again soon.
func (k *volumeKeeper) handOver(ctx context.Context, uid string, v *heldVolume, disk *volume.Disk) error {
	s := v.sending
	k.mu.Lock()
	if !k.mayHandOver(uid, s.order) {
		k.mu.Unlock()
		return nil
	}
	v.ready = false
	k.cutReaders(uid)
	s.seen = proto.CloneOf(s.seen)
	s.seen.HandsOver = true
	k.mu.Unlock()
	k.agent.publish()

	within, cancel := context.WithTimeout(ctx, handOverTime)
	err := disk.HandOver(within)
	cancel()
	if err != nil {
		s.refused++
		s.stop() // otherwise the daemon waits for the other host before it ends
	}
	k.mu.Lock()
	if err == nil && !k.mayHandOver(uid, s.order) {
		err = errors.New("the volume is not to be handed over any more")
	}
	k.mu.Unlock()
	disk.Stop()
	if err != nil {
		k.sendFailed(s, disk, err)
		poke(k.wake) // the next step serves the disk again
		return err
	}
	facts := v.facts
	facts.GivenUp = &volume.GivenUp{Move: s.order.Move, Copy: s.order.Copy, Target: s.order.Host.GetName(), TargetUID: s.order.Host.GetUid()}
	if err := volume.Describe(k.folder, uid, facts); err != nil {
		s.unsure = true
		return fmt.Errorf("record that the volume was given up: %w", err)
	}
	s.stop()
	k.mu.Lock()
	v.facts, v.sending = facts, nil
	k.mu.Unlock()
	k.log.Info("a volume was given up", "volume", facts.Name, "host", s.order.Host.GetName())
	return givenUp(facts)
}

// errGivenUp says why a disk is not served that was given up.
var errGivenUp = errors.New("its disk was given up")

func givenUp(f volume.Facts) error { return fmt.Errorf("%w to host %s", errGivenUp, f.GivenUp.Target) }

// keepDisk makes sure that a disk may be served. An earlier attempt to give it up may have failed in an uncertain way, or the
// disk was given up.
func (k *volumeKeeper) keepDisk(w *v1.VolumeWanted, v *heldVolume, disk *volume.Disk) error {
	if s := v.sending; s != nil && s.unsure {
		if err := volume.Describe(k.folder, w.Uid, v.facts); err != nil {
			return fmt.Errorf("record that the volume was not given up: %w", err)
		}
		s.unsure = false
		k.sendFailed(s, disk, errors.New("the hand-over could not be recorded"))
	}
	if v.facts.GivenUp == nil || w.Restore != nil && w.Facts.GetGeneration() > v.facts.Generation {
		return nil
	}
	if w.TakeBack != v.facts.GivenUp.Move {
		disk.Stop()
		return givenUp(v.facts)
	}
	facts := v.facts
	facts.GivenUp = nil
	if err := volume.Describe(k.folder, w.Uid, facts); err != nil {
		return fmt.Errorf("take the volume back: %w", err)
	}
	k.mu.Lock()
	v.facts = facts
	k.mu.Unlock()
	k.log.Info("a volume was taken back", "volume", facts.Name)
	return nil
}

// adopt makes the copy that another host has sent the volume's disk, once.
func (k *volumeKeeper) adopt(w *v1.VolumeWanted, v *heldVolume) error {
	k.mu.Lock()
	c := k.copies[w.Uid]
	busy := c != nil && c.working
	k.mu.Unlock()
	switch {
	case w.Adopt == nil || v.facts.Generation >= w.Facts.GetGeneration():
		return nil
	case busy:
		return errors.New("the copy that was sent is still in use")
	}
	facts := volumeFacts(w.Facts)
	facts.Copy, facts.Restored = w.Adopt.Copy, w.Adopt.Restored
	if err := volume.Adopt(k.folder, k.sockets, w.Uid, facts); err != nil {
		return err
	}
	k.mu.Lock()
	v.facts = facts
	delete(k.copies, w.Uid)
	k.mu.Unlock()
	k.log.Info("a volume was taken over", "volume", facts.Name)
	return nil
}

// reseal returns the description of a disk after the manager has described it anew. A manager that describes an earlier disk works
// with an older copy of its store: this host's description tells it of the later one.
func reseal(before volume.Facts, f *v1.VolumeFacts) (facts volume.Facts, changed bool) {
	if f.GetSeal() == nil || bytes.Equal(f.Seal, before.Seal) || f.Generation < before.Generation {
		return before, false
	}
	facts = volumeFacts(f)
	facts.Restored, facts.Copy = before.Restored, before.Copy
	return facts, true
}

// copyKey names the copy of a volume that is made in a move.
func copyKey(uid, move string) string { return uid + "/" + move }

// cutReaders closes all connections to a volume. k.mu is held.
func (k *volumeKeeper) cutReaders(uid string) {
	for _, r := range k.readers[uid] {
		r.cancel()
		r.ctx, r.cancel = context.WithCancel(k.agent.ctx)
	}
}

// followCopies begins to follow the orders about copies that other hosts send. k.mu is held.
func (k *volumeKeeper) followCopies(ctx context.Context, user volume.User) {
	ordered := map[string]bool{}
	for _, w := range k.orders.Volumes {
		c := k.copies[w.Uid]
		if !validUID(w.Uid) || w.Receive == nil && (w.Drop == "" || c == nil) {
			continue
		}
		ordered[w.Uid] = true
		if c == nil {
			c = &heldCopy{}
			k.copies[w.Uid] = c
		}
		if c.working {
			continue
		}
		if c.facts.Copy == "" {
			c.facts.Move = w.Receive.GetMove()
		}
		c.working = true
		go k.receive(ctx, w, c, user)
	}
	for uid, c := range k.copies {
		if !ordered[uid] && !c.working && c.facts.Copy == "" {
			delete(k.copies, uid) // it could not be made
		}
	}
}

// receive makes and serves a copy, or deletes it.
func (k *volumeKeeper) receive(ctx context.Context, w *v1.VolumeWanted, c *heldCopy, user volume.User) {
	disk, facts := volume.OpenCopy(k.folder, k.sockets, w.Uid), c.facts
	dropped := w.Drop != "" && w.Drop == facts.Copy
	err := errors.Join(os.MkdirAll(k.folder, 0o711), os.MkdirAll(k.sockets, 0o711))
	if err == nil && dropped {
		err = disk.Delete()
	} else if err == nil {
		if facts.Copy == "" {
			facts, err = k.makeCopy(ctx, w, user)
		}
		switch {
		case err != nil:
		case facts.Move != w.Receive.GetMove():
			err = errors.New("a copy of an earlier move is there")
		default:
			err = disk.Serve(ctx, user)
		}
	}
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	before := *c
	c.working, c.ready, c.facts = false, err == nil && !dropped, facts
	c.note(err)
	if err == nil && dropped {
		delete(k.copies, w.Uid)
	}
	changed := dropped || before.ready != c.ready || before.message != c.message || before.facts.Copy != c.facts.Copy || before.failed != c.failed
	k.mu.Unlock()
	if changed {
		k.agent.publish()
	}
}

// makeCopy makes an empty disk for a copy, unless there is one that was not listed at the start.
func (k *volumeKeeper) makeCopy(ctx context.Context, w *v1.VolumeWanted, user volume.User) (volume.Facts, error) {
	facts := volumeFacts(w.Facts)
	facts.Move = w.Receive.GetMove()
	found, err := volume.Copies(k.folder)
	if have, is := found[w.Uid]; is {
		return have, nil
	}
	if err != nil || w.Receive == nil {
		return volume.Facts{Move: facts.Move}, cmp.Or(err, errors.New("there is no copy"))
	}
	facts.Copy = rand.Text()
	if err := volume.Receive(ctx, k.folder, w.Uid, facts, user); err != nil {
		return volume.Facts{Move: facts.Move}, err
	}
	return facts, nil
}

// reportCopies returns the copies that other hosts send, or have sent.
func (k *volumeKeeper) reportCopies() (list []*v1.VolumeCopyObserved) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for uid, c := range k.copies {
		list = append(list, &v1.VolumeCopyObserved{Uid: uid, Move: c.facts.Move, Copy: c.facts.Copy, Ready: c.ready, Message: c.message, Failed: c.failed})
	}
	slices.SortFunc(list, func(a, b *v1.VolumeCopyObserved) int { return cmp.Compare(a.Uid, b.Uid) })
	return list
}

// copyReader returns the socket of a copy for the host that sends it. k.mu is held.
func (k *volumeKeeper) copyReader(r *allowed, host, hostUID, key string) (string, context.Context, error) {
	parts := strings.Split(key, "/")
	c := k.copies[parts[0]]
	switch {
	case r == nil || r.uid != hostUID || len(parts) != 3:
		return "", nil, fmt.Errorf("host %s may not use volume %s", host, key)
	case c == nil || !c.ready || c.facts.Move != parts[1] || c.facts.Copy != parts[2]:
		return "", nil, fmt.Errorf("the copy of volume %s is not here", parts[0])
	}
	return volume.OpenCopy(k.folder, k.sockets, parts[0]).Socket(), r.ctx, nil
}
