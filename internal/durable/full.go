package durable

import (
	"errors"
	"syscall"
)

// IsFull reports whether something failed because a disk, or the user's share of it, is full.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
