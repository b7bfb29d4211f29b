package agent

// memory.go - what a guest tells of processes that its kernel ended because its memory ran out.

import (
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// noteMemory keeps what the guest has told; nil: nothing, or its agent is an older one.
func (k *identityKeeper) noteMemory(told *v1.OutOfMemory) {
	k.mu.Lock()
	changed := !proto.Equal(k.memory, told)
	k.memory = told
	k.mu.Unlock()
	if changed {
		k.g.agent.publish()
	}
}

// outOfMemory is what the guest told last.
func (k *identityKeeper) outOfMemory() *v1.OutOfMemory {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.memory
}
