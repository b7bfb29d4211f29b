package sharing

// step.go - a host's choice of how to get a template that it needs.

import "time"

const (
	// OrderPatience is how long a host waits for the manager's order before it makes a template.
	OrderPatience = 3 * time.Second
	// WaitPatience is how long a host waits for another host's template, whatever the manager orders.
	WaitPatience = 200 * time.Second
)

// TemplateTold is a host's knowledge when it decides about a template that it needs.
type TemplateTold struct {
	Sharing bool          // the manager has sharing on
	Order   TemplateOrder // 0: none yet
	// FetchFailed means that this host failed to fetch the template, or to use one that it had fetched.
	FetchFailed bool
	Waited      time.Duration
}

// NextStep returns the host's next step. If the host cannot count on another host's template, it makes its own.
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
