package agent

// memory.go - a guest's message about processes that its kernel killed because memory ran out.

import (
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// noteMemory stores the guest's message; nil: the guest has none, or its agent is too old to send one.
func (k *identityKeeper) noteMemory(message *v1.OutOfMemory) {
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
