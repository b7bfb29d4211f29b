package sharing

// step.go - a host's own choice: how it goes on about a template that it wants.

import "time"

const (
	// OrderPatience is how long a host waits for the manager's word before it makes a template.
	OrderPatience = 3 * time.Second
	// WaitPatience is how long it waits for another host's template, whatever the manager says.
	WaitPatience = 200 * time.Second
)

// TemplateTold is what a host knows when it decides about a template that it wants.
type TemplateTold struct {
	Sharing bool          // the manager shares at all
	Order   TemplateOrder // 0: none yet
	// FetchFailed: this host has tried to fetch the template, or to use one that it fetched, in vain.
	FetchFailed bool
	Waited      time.Duration
}

// NextStep says what the host does now. It makes the template itself whenever it cannot count on another host's.
func NextStep(t TemplateTold) TemplateOrder {
	switch {
	case !t.Sharing, t.FetchFailed, t.Waited >= WaitPatience:
		return Make
	case t.Order == 0 && t.Waited >= OrderPatience:
		return Make
	case t.Order == 0:
		return Wait
	}
	return t.Order
}
