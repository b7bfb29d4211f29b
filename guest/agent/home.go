package agent

import (
	"log/slog"
	"sync"
)

// home is the cluster's shared home in this guest.
type home struct {
	log *slog.Logger

	mu    sync.Mutex
	state string
}

func newHome(log *slog.Logger) *home { return &home{log: log, state: "not asked for"} }

// status is "ready", or why the home is not there.
func (h *home) status() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// want brings about the home of an identity, in the background.
func (h *home) want(c checked) {}
