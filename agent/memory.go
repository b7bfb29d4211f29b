package agent

// memory.go - a guest's message about processes that its kernel killed because memory ran out.

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// maxProcessName bounds a process's name in bytes. Linux has names of at most 15.
const maxProcessName = 64

// noteMemory stores the guest's message; nil: the guest has none, or its agent is too old to send one. Only the known fields are
// stored, and a bounded name: a guest must not make the host's report too large for the manager.
func (k *identityKeeper) noteMemory(message *v1.OutOfMemory) {
	if message != nil {
		name := strings.ToValidUTF8(message.Process[:min(len(message.Process), maxProcessName)], "")
		message = &v1.OutOfMemory{Kills: message.Kills, Process: name, Pid: message.Pid, Bytes: message.Bytes,
			At: &timestamppb.Timestamp{Seconds: message.GetAt().GetSeconds(), Nanos: message.GetAt().GetNanos()}}
	}
	k.mu.Lock()
	changed := !proto.Equal(k.memory, message)
	k.memory = message
	k.mu.Unlock()
	if changed {
		k.g.agent.publish()
	}
}

// outOfMemory returns the guest's last message.
func (k *identityKeeper) outOfMemory() *v1.OutOfMemory {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.memory
}
