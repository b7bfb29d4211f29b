package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

const suspending = ownersOfAll + "harvest: {suspend_after: 2m}\n"

// ownersBack makes the owners of hosts come back, or go away.
func (h *household) ownersBack(idle float64, hosts ...string) {
	for _, name := range hosts {
		h.idle[name] = idle
	}
}

// ownerLeaves makes a host's owner leave, and waits until the host takes guests again.
func (h *household) ownerLeaves(name string) {
	h.ownersBack(1000, name)
	for range 32 {
		h.pass(time.Second)
	}
}

// finish ends the checkpoint that is under way as whole, with its files on these hosts.
func (h *household) finish(hosts ...string) {
	h.t.Helper()
	h.saved("md-c1", 0, func(c *v1.Checkpoint) {
		made := h.objects.Checkpoints["md-c1"]
		c.Suspends, c.WithdrawnSince, c.Meta = made.Suspends, made.WithdrawnSince, made.Meta
		for _, m := range c.Members {
			m.File.Hosts = hosts
		}
	})
}

// suspended returns a household whose cluster is suspended: the owners of all hosts are back.
func suspended(t *testing.T, guests int) *household {
	h := newHousehold(t, suspending, guests)
	h.objects.Clusters["md"].CheckpointRecipient = "public"
	h.pass(0)
	h.ownersBack(0.1, "a1", "a2", "b1")
	h.pass(time.Second)
	h.pass(119 * time.Second)
	if len(h.objects.Checkpoints) != 0 || h.moves() != "" {
		t.Fatalf("before its time: checkpoints %v, moves %q", sortedKeys(h.objects.Checkpoints), h.moves())
	}
	h.pass(time.Second)
	if c := h.objects.Checkpoints["md-c1"]; !c.GetSuspends() || c.State != v1.CheckpointState_CHECKPOINT_STATE_PREPARING {
		t.Fatalf("the checkpoint is %v", c)
	}
	h.pass(time.Second)
	h.finish("a1", "b1")
	h.pass(time.Second)
	if restore := h.objects.Clusters["md"].Restore; restore.GetPolicy() != "harvest" || restore.GetCheckpoint() != "md-c1" || !ending(h.objects.Clusters["md"]) {
		t.Fatalf("the cluster's restore is %v", restore)
	}
	if orders := h.pass(0); len(orders["a1"].Guests) == 0 || orders["a1"].Guests[0].Role != v1.GuestRole_GUEST_ROLE_ABSENT {
		t.Errorf("a1's orders are %v", orders["a1"].Guests)
	}
	h.releaseAll()
	return h
}

func TestAClusterWithoutRoomIsSuspended(t *testing.T) {
	h := suspended(t, 2)
	h.pass(time.Minute)
	if !ending(h.objects.Clusters["md"]) || !strings.Contains(h.objects.Guests["md-0"].Message, "its owner uses it") {
		t.Errorf("while there is no room: restore %v, md-0 %v", h.objects.Clusters["md"].Restore, h.objects.Guests["md-0"])
	}
	h.ownerLeaves("b1")
	for _, g := range h.objects.Guests {
		if g.Host != "b1" || g.Epoch != 2 {
			t.Errorf("when b1 has room, %s is %v", g.Meta.Name, g)
		}
	}
	if orders := h.pass(0)["b1"]; len(orders.Guests) != 2 || orders.Guests[0].Restore.GetCheckpointId() != h.objects.Checkpoints["md-c1"].Meta.Uid {
		t.Errorf("b1's orders are %v", orders.Guests)
	}
	if all := strings.Join(h.events, "\n"); !strings.Contains(all, "md is suspended: the owner of host a1 is back, and no host has room for guest md-0; it goes on from checkpoint md-c1") {
		t.Errorf("the events are\n%s", all)
	}
}

// A suspended cluster takes no resources before there is room for all of its guests.
func TestASuspendedClusterWaitsForRoomForAll(t *testing.T) {
	h := suspended(t, 10) // of 1 GiB each; a host has 8
	h.ownerLeaves("b1")
	for _, g := range h.objects.Guests {
		if g.Host != "" {
			t.Errorf("%s has a place on %s before there is room for all", g.Meta.Name, g.Host)
		}
	}
	h.ownerLeaves("a2")
	for _, g := range h.objects.Guests {
		if g.Host == "" {
			t.Errorf("%s has no place though there is room: %s", g.Meta.Name, g.Message)
		}
	}
}

// Two suspended clusters do not take each other's room.
func TestClustersAreRestoredOneAfterTheOther(t *testing.T) {
	h := suspended(t, 5)
	cluster := proto.CloneOf(h.objects.Clusters["md"])
	cluster.Meta.Name, cluster.Meta.Uid, cluster.Prefix = "zz", "uid-zz", "10.0.1.0/24"
	cluster.Restore.Checkpoint, cluster.Restore.CheckpointUid = "zz-c1", "uid-zz-c1"
	made := proto.CloneOf(h.objects.Checkpoints["md-c1"])
	made.Meta.Name, made.Meta.Uid, made.Cluster, made.ClusterUid = "zz-c1", "uid-zz-c1", "zz", "uid-zz"
	var c Change
	for i, m := range made.Members {
		g := proto.CloneOf(h.objects.Guests[m.Guest])
		g.Meta.Name, g.Meta.Uid, g.Cluster, g.Address = "zz"+m.Guest[2:], "f"+g.Meta.Uid[1:], "zz", "10.0.1."+string(rune('1'+i))
		m.Guest, m.GuestUid = g.Meta.Name, g.Meta.Uid
		c.write(Create, g)
	}
	c.write(Create, cluster)
	c.write(Create, made)
	h.objects = h.objects.Apply(c)
	h.ownerLeaves("b1")
	for _, g := range h.objects.Guests {
		if g.Host == "" == (g.Cluster == "md") {
			t.Errorf("%s of %s is on %q", g.Meta.Name, g.Cluster, g.Host)
		}
	}
}

// Guests that also wait for room do not take the room of a cluster whose restore has just begun.
func TestOtherGuestsDoNotTakeTheRoomOfARestore(t *testing.T) {
	h := suspended(t, 8) // of 1 GiB each; a host has 8
	for i, name := range []string{"aa", "zz"} {
		h.objects.Clusters[name] = &v1.Cluster{Meta: &v1.Meta{Name: name, Uid: "uid-" + name}, Spec: &v1.ClusterSpec{Guests: 1}, Prefix: fmt.Sprintf("10.0.%d.0/24", i+1)}
		g := proto.CloneOf(h.objects.Guests["md-0"])
		g.Meta.Name, g.Meta.Uid, g.Cluster, g.Address = name+"-0", "uid-"+name+"-0", name, fmt.Sprintf("10.0.%d.1", i+1)
		h.objects = h.objects.Apply(Change{Ops: []Op{{Create, g}}})
	}
	h.ownerLeaves("b1")
	for name, g := range h.objects.Guests {
		if g.Host == "" == (g.Cluster == "md") {
			t.Errorf("%s is on %q: %s", name, g.Host, g.Message)
		}
	}
}

// If a restore has lost the room for a guest, the other guests do not keep their memory for ever.
func TestARestoreThatHasLostItsRoomBeginsAgain(t *testing.T) {
	h := suspended(t, 2)
	h.ownerLeaves("b1")
	h.ownersBack(0.1, "b1")
	h.pass(time.Second)
	g := proto.CloneOf(h.objects.Guests["md-1"])
	g.Host = ""
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, g}}})
	h.pass(time.Second)
	h.pass(lackingFor - time.Second)
	if ending(h.objects.Clusters["md"]) || h.objects.Guests["md-0"].Host != "b1" {
		t.Fatalf("too early: %v, md-0 %v", h.objects.Clusters["md"].Restore, h.objects.Guests["md-0"])
	}
	orders := h.pass(time.Second)
	if !ending(h.objects.Clusters["md"]) || orders["b1"].Guests[0].Role != v1.GuestRole_GUEST_ROLE_ABSENT {
		t.Fatalf("after a minute: %v, b1's orders are %v", h.objects.Clusters["md"].Restore, orders["b1"].Guests)
	}
	h.releaseAll()
	h.ownerLeaves("b1")
	for name, g := range h.objects.Guests {
		if g.Host != "b1" {
			t.Errorf("%s has no place though there is room: %s", name, g.Message)
		}
	}
}

// A cluster is not suspended before its files are copied to other hosts, but after suspendCopied it is suspended all the
// same.
func TestFilesAreCopiedBeforeAClusterIsSuspended(t *testing.T) {
	h := newHousehold(t, suspending, 1)
	h.objects.Clusters["md"].CheckpointRecipient = "public"
	h.sharing = true
	h.pass(0)
	h.ownersBack(0.1, "a1", "a2", "b1")
	h.pass(time.Second)
	h.pass(2 * time.Minute)
	h.finish("a1")
	h.pass(time.Second)
	if restore := h.objects.Clusters["md"].Restore; restore != nil {
		t.Fatalf("before the files are copied, the restore is %v", restore)
	}
	h.pass(5 * time.Minute)
	if restore := h.objects.Clusters["md"].Restore; restore.GetPolicy() != "harvest" {
		t.Errorf("after five minutes the restore is %v", restore)
	}
}

// A cluster with guests on two hosts is suspended with the checkpoint that was made for one of them, though the other host's owner
// comes back while its files are copied.
func TestAClusterOnTwoHostsIsSavedOnceForBothOwners(t *testing.T) {
	h := newHousehold(t, suspending, 2)
	h.objects.Clusters["md"].CheckpointRecipient = "public"
	h.objects.Guests["md-1"].Host, h.objects.Guests["md-1"].BootId = "a2", "boot-a2"
	h.sharing = true
	h.objects.Hosts["a1"].Info.MemoryBytes = 3 << 29 // no room for another guest
	h.pass(0)
	h.ownersBack(0.1, "a2", "b1")
	h.pass(time.Second)
	h.ownersBack(0.1, "a1")
	h.pass(time.Minute)
	h.pass(time.Minute)
	if h.objects.Checkpoints["md-c1"] == nil {
		t.Fatalf("checkpoints are %v", sortedKeys(h.objects.Checkpoints))
	}
	h.finish("a1")
	h.pass(2 * time.Minute)
	if names := sortedKeys(h.objects.Checkpoints); len(names) != 1 {
		t.Fatalf("checkpoints are %v", names)
	}
	h.pass(3 * time.Minute)
	if restore := h.objects.Clusters["md"].Restore; restore.GetCheckpoint() != "md-c1" {
		t.Errorf("the restore is %v", restore)
	}
}

// A checkpoint that waits does not keep a cluster from being suspended.
func TestACheckpointThatWaitsMakesWayForASuspension(t *testing.T) {
	h := newHousehold(t, suspending, 1)
	h.objects.Clusters["md"].CheckpointRecipient = "public"
	h.pass(0)
	h.ownersBack(0.1, "a1", "a2", "b1")
	h.pass(time.Second)
	h.saved("md-c7", 0, func(c *v1.Checkpoint) {
		c.State, c.Ended, c.Taken = v1.CheckpointState_CHECKPOINT_STATE_PENDING, nil, nil
	})
	h.pass(2 * time.Minute)
	if c := h.objects.Checkpoints["md-c7"]; c.State != v1.CheckpointState_CHECKPOINT_STATE_CANCELLED {
		t.Errorf("the checkpoint that waited is %v", c)
	}
	for name, c := range h.objects.Checkpoints {
		if c.Suspends {
			return
		}
		t.Logf("%s: %v", name, c)
	}
	t.Error("no checkpoint is made to suspend the cluster")
}

func TestWhatIsNotSuspended(t *testing.T) {
	for name, change := range map[string]func(h *household){
		"a cluster that has room":      func(h *household) { h.ownersBack(1000, "b1") },
		"a guest that may stay":        func(h *household) { h.objects.Policies["v1"].Text += "  exempt: {guests: [md-0]}\n" },
		"without suspend_after":        func(h *household) { h.objects.Policies["v1"].Text = ownersOfAll + "harvest: {}\n" },
		"a cluster without a key pair": func(h *household) { h.objects.Clusters["md"].CheckpointRecipient = "" },
		"a cluster saved a moment ago": func(h *household) {
			h.saved("md-c7", 0, func(c *v1.Checkpoint) {
				c.State, c.Suspends, c.Ended = v1.CheckpointState_CHECKPOINT_STATE_FAILED, true, timestamppb.New(h.now.Add(90*time.Second))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHousehold(t, ownersOfAll+"harvest:\n  suspend_after: 2m\n", 1)
			h.objects.Clusters["md"].CheckpointRecipient = "public"
			h.ownersBack(0.1, "a1", "a2", "b1")
			change(h)
			h.pass(time.Second)
			h.pass(2 * time.Minute)
			for name, c := range h.objects.Checkpoints {
				if c.State != v1.CheckpointState_CHECKPOINT_STATE_FAILED {
					t.Errorf("checkpoint %s is made: %v", name, c)
				}
			}
		})
	}
}

// An administrator may drain a host whose owner is back, while its guests wait for room.
func TestAClusterOnADrainedHostIsSuspended(t *testing.T) {
	h := newHousehold(t, suspending, 1)
	h.objects.Clusters["md"].CheckpointRecipient = "public"
	h.ownersBack(0.1, "a1", "a2", "b1")
	h.pass(time.Second)
	drained := proto.CloneOf(h.objects.Hosts["a1"])
	drained.Draining = true
	var c Change
	c.write(Update, drained)
	h.objects = h.objects.Apply(c)
	h.pass(2 * time.Minute)
	if c := h.objects.Checkpoints["md-c1"]; !c.GetSuspends() || c.State != v1.CheckpointState_CHECKPOINT_STATE_PREPARING {
		t.Errorf("the checkpoint is %v", c)
	}
}

func TestAClusterWithAnExemptGuestIsNotSuspended(t *testing.T) {
	h := newHousehold(t, suspending+"exempt: {guests: [md-1]}\n", 2)
	h.objects.Clusters["md"].CheckpointRecipient = "public"
	h.ownersBack(0.1, "a1", "a2", "b1")
	h.pass(time.Second)
	h.pass(2 * time.Minute)
	if len(h.objects.Checkpoints) > 0 {
		t.Errorf("checkpoints are made: %v", sortedKeys(h.objects.Checkpoints))
	}
}

func TestAVisitBeginsAnewWhenTheClockIsSetBack(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {throttle: {stop_after: 20s}}\n", 1)
	h.ownersBack(0.1, "a1", "a2", "b1")
	h.pass(time.Second)
	h.pass(-6 * time.Hour)
	if since := h.objects.Hosts["a1"].Withdrawn[0].Since.AsTime(); !since.Equal(h.now) {
		t.Errorf("the visit began at %v; it is %v", since, h.now)
	}
	if limits := limitsIn(h.pass(20*time.Second), "a1", "md-0"); limits.GetCpuPermille() != 5 {
		t.Errorf("the guest's limits are %v", limits)
	}
}
