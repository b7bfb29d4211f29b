package policy

// alone.go - the part of a policy that a host follows by itself while it hears from no manager.

import (
	"fmt"
	"strings"

	v1 "watari/api/watariv1"
)

// Alone returns the text of a policy that slows the guests of one host down as this one does while the host's owner uses it. It has
// only the rule of this host. Empty: this one never slows them down.
func (p *Policy) Alone(h *v1.Host) string {
	_, rule := p.Rule(h)
	if !rule.HasOwner() || p.Harvest == nil {
		return ""
	}
	t := p.Harvest.Throttle
	if t.Weight == 0 && t.Permille == 0 && t.StopAfter < 0 {
		return ""
	}
	var text strings.Builder
	text.WriteString("owners:\n- busy:\n")
	for _, c := range rule.Busy {
		fmt.Fprintf(&text, "  - {when: %q, for: %s}\n", c.When.Text, c.For)
	}
	fmt.Fprintf(&text, "  idle: {when: %q, for: %s}\nharvest:\n  throttle:\n", rule.Idle.When.Text, rule.Idle.For)
	if t.Weight > 0 {
		fmt.Fprintf(&text, "    weight: %d\n", t.Weight)
	}
	if t.Permille > 0 {
		fmt.Fprintf(&text, "    cpu: %g%%\n", float64(t.Permille)/10)
	}
	if t.StopAfter >= 0 {
		fmt.Fprintf(&text, "    stop_after: %s\n", t.StopAfter)
	}
	return text.String()
}
