package policy

// parse.go - reads the policy file.

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Bounds of a policy file.
const (
	// MaxText is the largest size of the file, in bytes.
	MaxText = 64 << 10
	// maxList bounds the entries of each list, so that a decision stays fast.
	maxList = 1000
	// maxWait bounds the times in the file.
	maxWait = 7 * 24 * time.Hour
)

// LineError is an error in a line of the file.
type LineError struct {
	Line    int
	Message string
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Message) }

// scalar is a value of the file, with its line.
type scalar struct {
	text string
	line int
}

// UnmarshalYAML takes the value from a node.
func (s *scalar) UnmarshalYAML(node ast.Node) error {
	s.line = node.GetToken().Position.Line
	value, is := node.(ast.ScalarNode)
	if !is {
		return s.errorf("a single value is wanted here, not a list or a group of keys")
	}
	s.text = strings.TrimSpace(fmt.Sprint(value.GetValue()))
	return nil
}

func (s *scalar) errorf(format string, a ...any) error {
	return &LineError{s.line, fmt.Sprintf(format, a...)}
}

// The file as it is written.
type (
	file struct {
		TimeZone    *scalar          `yaml:"time_zone"`
		Owners      []ownerText      `yaml:"owners"`
		Harvest     *harvestText     `yaml:"harvest"`
		Maintenance *maintenanceText `yaml:"maintenance"`
		Exempt      exemptText       `yaml:"exempt"`
	}
	ownerText struct {
		Match *scalar         `yaml:"match"`
		Busy  []conditionText `yaml:"busy"`
		Idle  *conditionText  `yaml:"idle"`
	}
	conditionText struct {
		When *scalar `yaml:"when"`
		For  *scalar `yaml:"for"`
	}
	harvestText struct {
		Limits   limitsText    `yaml:",inline"`
		Throttle *throttleText `yaml:"throttle"`
	}
	throttleText struct {
		Weight    *scalar `yaml:"weight"`
		CPU       *scalar `yaml:"cpu"`
		StopAfter *scalar `yaml:"stop_after"`
	}
	maintenanceText struct {
		Limits  limitsText              `yaml:",inline"`
		Windows []maintenanceWindowText `yaml:"windows"`
	}
	maintenanceWindowText struct {
		Match  *scalar    `yaml:"match"`
		Lead   *scalar    `yaml:"lead"`
		Window windowText `yaml:",inline"`
	}
	windowText struct {
		Begin *scalar  `yaml:"begin"`
		End   *scalar  `yaml:"end"`
		Days  []scalar `yaml:"days"`
		From  *scalar  `yaml:"from"`
		To    *scalar  `yaml:"to"`
	}
	limitsText struct {
		CoolDown     *scalar      `yaml:"cool_down"`
		MovesPerHour *scalar      `yaml:"moves_per_hour"`
		Bandwidth    *scalar      `yaml:"bandwidth"`
		QuietHours   []windowText `yaml:"quiet_hours"`
		Exempt       exemptText   `yaml:"exempt"`
	}
	exemptText struct {
		Clusters []scalar `yaml:"clusters"`
		Guests   []scalar `yaml:"guests"`
	}
)

// Parse reads a policy file. The error is a *LineError with the first wrong line, if it lies in one.
func Parse(text string) (*Policy, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("the policy has %d bytes; it may have %d", len(text), MaxText)
	}
	var f file
	if err := yaml.UnmarshalWithOptions([]byte(text), &f, yaml.Strict()); err != nil {
		var line *LineError
		var at yaml.Error
		switch {
		case errors.As(err, &line):
			return nil, line
		case errors.As(err, &at) && at.GetToken() != nil:
			return nil, &LineError{at.GetToken().Position.Line, at.GetMessage()}
		}
		return nil, fmt.Errorf("read the policy: %w", err)
	}
	r := reader{zone: time.UTC}
	if f.TimeZone != nil {
		r.readZone(f.TimeZone)
	}
	p := &Policy{Text: text, Exempt: r.exempt(f.Exempt)}
	r.bound("owners", len(f.Owners))
	for _, o := range f.Owners {
		p.Owners = append(p.Owners, r.owner(o))
	}
	if f.Harvest != nil {
		p.Harvest = r.harvest(f.Harvest)
	}
	if f.Maintenance != nil {
		p.Maintenance = r.maintenance(f.Maintenance)
	}
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// reader checks values, and keeps the first error.
type reader struct {
	zone *time.Location
	err  error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) bound(what string, n int) {
	if n > maxList {
		r.fail(fmt.Errorf("%s: there are %d, and may be %d", what, n, maxList))
	}
}

func (r *reader) readZone(s *scalar) {
	zone, err := time.LoadLocation(s.text)
	if err != nil || s.text == "" {
		r.fail(s.errorf("time_zone: %q is not known; it is a name as Asia/Tokyo", s.text))
		return
	}
	r.zone = zone
}

// wait reads a time such as "90s", "5m" or "1h30m"; missing: what it is if nothing is written.
func (r *reader) wait(s *scalar, key string, missing time.Duration) time.Duration {
	if s == nil {
		return missing
	}
	d, err := time.ParseDuration(s.text)
	switch {
	case err != nil:
		r.fail(s.errorf("%s: %q is not a time such as 90s, 5m or 1h30m", key, s.text))
	case d < 0 || d > maxWait:
		r.fail(s.errorf("%s: %s is not between 0s and %s", key, s.text, maxWait))
	}
	return d
}

func (r *reader) number(s *scalar, key string, low, high int) int {
	if s == nil {
		return 0
	}
	n, err := strconv.Atoi(s.text)
	if err != nil || n < low || n > high {
		r.fail(s.errorf("%s: %q is not a number from %d to %d", key, s.text, low, high))
	}
	return n
}

// match reads the expression that chooses hosts; missing: all of them.
func (r *reader) match(s *scalar) *Expression {
	if s == nil {
		s = &scalar{text: "true"}
	}
	e, err := compile(matching, s.text)
	if err != nil {
		if _, measured := compile(measuring, s.text); measured == nil {
			err = errors.New("it uses what is measured of a host; only `when` can")
		}
		r.fail(s.errorf("match: %v", err))
	}
	return e
}

func (r *reader) owner(o ownerText) *OwnerRule {
	rule := &OwnerRule{Match: r.match(o.Match)}
	r.bound("busy", len(o.Busy))
	for _, c := range o.Busy {
		rule.Busy = append(rule.Busy, r.condition(c, "busy"))
	}
	switch {
	case len(o.Busy) == 0 && o.Idle != nil:
		r.fail(errors.New("owners: an entry has `idle` without `busy`: nothing would ever withdraw its hosts"))
	case len(o.Busy) > 0 && o.Idle == nil:
		r.fail(errors.New("owners: an entry has `busy` without `idle`: its hosts would never take guests again"))
	case o.Idle != nil:
		rule.Idle = r.condition(*o.Idle, "idle")
	}
	return rule
}

func (r *reader) condition(c conditionText, key string) Condition {
	if c.When == nil {
		r.fail(fmt.Errorf("%s: a condition has no `when`", key))
		return Condition{}
	}
	e, err := compile(measuring, c.When.text)
	if err != nil {
		r.fail(c.When.errorf("%s: %v", key, err))
	}
	return Condition{When: e, For: r.wait(c.For, "for", 0)}
}

func (r *reader) harvest(h *harvestText) *Harvest {
	made := &Harvest{Limits: r.limits(h.Limits), Throttle: Throttle{StopAfter: -1}}
	if t := h.Throttle; t != nil {
		made.Throttle.Weight = uint32(r.number(t.Weight, "weight", 1, 10000))
		made.Throttle.Permille = r.permille(t.CPU)
		made.Throttle.StopAfter = r.wait(t.StopAfter, "stop_after", -1)
	}
	return made
}

// permille reads a percentage of a virtual CPU's time.
func (r *reader) permille(s *scalar) uint32 {
	if s == nil {
		return 0
	}
	percent, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(s.text, "%")), 64)
	if err != nil || !strings.HasSuffix(s.text, "%") || !(percent >= 0.1 && percent <= 100) {
		r.fail(s.errorf("cpu: %q is not a percentage from 0.1%% to 100%%", s.text))
		return 0
	}
	return uint32(percent * 10)
}

func (r *reader) maintenance(m *maintenanceText) *Maintenance {
	made := &Maintenance{Limits: r.limits(m.Limits)}
	r.bound("windows", len(m.Windows))
	for _, w := range m.Windows {
		made.Windows = append(made.Windows, MaintenanceWindow{Match: r.match(w.Match), Lead: r.wait(w.Lead, "lead", 0), Window: r.window(w.Window, "windows")})
	}
	return made
}

func (r *reader) limits(l limitsText) Limits {
	made := Limits{CoolDown: r.wait(l.CoolDown, "cool_down", 0), MovesPerHour: r.number(l.MovesPerHour, "moves_per_hour", 1, 1_000_000), Exempt: r.exempt(l.Exempt)}
	if l.Bandwidth != nil {
		made.Bandwidth = r.bandwidth(l.Bandwidth)
	}
	r.bound("quiet_hours", len(l.QuietHours))
	for _, w := range l.QuietHours {
		made.QuietHours = append(made.QuietHours, r.window(w, "quiet_hours"))
	}
	return made
}

// bandwidth reads bytes per second: "100MB" or "12MiB".
func (r *reader) bandwidth(s *scalar) uint64 {
	n, err := humanize.ParseBytes(strings.TrimSuffix(s.text, "/s"))
	if err != nil || n < 1<<20 || n > 1<<40 {
		r.fail(s.errorf("bandwidth: %q is not a rate from 1MiB/s to 1TiB/s", s.text))
	}
	return n
}

func (r *reader) exempt(e exemptText) (made Exempt) {
	patterns := func(list []scalar, what string) (texts []string) {
		r.bound(what, len(list))
		for _, s := range list {
			if _, err := path.Match(s.text, ""); err != nil || s.text == "" {
				r.fail(s.errorf("%s: %q is not a name, nor a pattern as md-*", what, s.text))
			}
			texts = append(texts, s.text)
		}
		return texts
	}
	return Exempt{Clusters: patterns(e.Clusters, "clusters"), Guests: patterns(e.Guests, "guests")}
}

func (r *reader) window(w windowText, key string) (made Window) {
	once, weekly := w.Begin != nil || w.End != nil, w.From != nil || w.To != nil || len(w.Days) > 0
	switch {
	case once == weekly || once && (w.Begin == nil || w.End == nil) || weekly && (w.From == nil || w.To == nil):
		r.fail(r.near(w, "%s: a window has `begin` and `end`, or `from` and `to` and perhaps `days`", key))
	case once:
		made.Begin, made.End = r.instant(w.Begin), r.instant(w.End)
		if r.err == nil && !made.Begin.Before(made.End) {
			r.fail(w.End.errorf("end: it is not after begin"))
		}
	default:
		made.Zone, made.From, made.To = r.zone, r.hour(w.From), r.hour(w.To)
		r.bound("days", len(w.Days))
		for _, d := range w.Days {
			made.Days = append(made.Days, r.day(d))
		}
	}
	return made
}

// near makes an error at the first line of a window that has one.
func (r *reader) near(w windowText, format string, a ...any) error {
	for _, s := range []*scalar{w.Begin, w.End, w.From, w.To} {
		if s != nil {
			return s.errorf(format, a...)
		}
	}
	if len(w.Days) > 0 {
		return w.Days[0].errorf(format, a...)
	}
	return fmt.Errorf(format, a...)
}

// instant reads a time with its zone, or of the file's zone.
func (r *reader) instant(s *scalar) time.Time {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if at, err := time.Parse(layout, s.text); err == nil {
			return at
		}
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if at, err := time.ParseInLocation(layout, s.text, r.zone); err == nil {
			return at
		}
	}
	r.fail(s.errorf("%q is not a time as 2026-12-01 08:00", s.text))
	return time.Time{}
}

// hour reads a time of day.
func (r *reader) hour(s *scalar) time.Duration {
	if at, err := time.Parse("15:04", s.text); err == nil {
		return time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute
	}
	if s.text == "24:00" {
		return 24 * time.Hour
	}
	r.fail(s.errorf("%q is not a time of day as 22:30; write it in quotation marks", s.text))
	return 0
}

func (r *reader) day(s scalar) time.Weekday {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if name := d.String(); strings.EqualFold(s.text, name) || strings.EqualFold(s.text, name[:3]) {
			return d
		}
	}
	r.fail(s.errorf("days: %q is not a day as mon or monday", s.text))
	return 0
}
