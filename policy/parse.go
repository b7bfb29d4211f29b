package policy

// parse.go - reads the policy file.

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"github.com/dustin/go-humanize"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a policy file.
const (
	// MaxText is the largest size of the file, in bytes.
	MaxText = 64 << 10
	// maxList bounds the entries of each list, so that a decision stays fast.
	maxList = 1000
	// maxWait bounds the times in the file.
	maxWait = 7 * 24 * time.Hour
	// maxExpressions bounds the expressions of the file, and maxExpressionsText their bytes together.
	maxExpressions     = 200
	maxExpressionsText = 16 << 10
	// maxDepth bounds nested lists and groups of keys. The YAML parser's work grows with the square of the depth.
	maxDepth = 20
	// maxEmptyLines, maxKeys (of a group) and maxKey (bytes) bound other parts for which the YAML parser's work grows with
	// the square.
	maxEmptyLines = 1000
	maxKeys       = 50
	maxKey        = 64
	// maxTokens bounds words and punctuation marks.
	maxTokens = 16_000
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
	if block, is := node.(*ast.LiteralNode); is {
		value = block.Value // without its | or >
	}
	s.text = strings.TrimSpace(fmt.Sprint(value.GetValue()))
	return nil
}

func (s scalar) errorf(format string, a ...any) error {
	return &LineError{s.line, fmt.Sprintf(format, a...)}
}

// entry is a list or a group of keys of the file, with its line.
type entry[T any] struct {
	value T
	line  int
}

// UnmarshalYAML takes the value from a node.
func (e *entry[T]) UnmarshalYAML(node ast.Node) error {
	e.line = node.GetToken().Position.Line
	return yaml.NodeToValue(node, &e.value, yaml.Strict())
}

func (e entry[T]) errorf(format string, a ...any) error {
	return &LineError{e.line, fmt.Sprintf(format, a...)}
}

// The file as it is written.
type (
	file struct {
		TimeZone    *scalar             `yaml:"time_zone"`
		Owners      []entry[ownerText]  `yaml:"owners"`
		Harvest     *harvestText        `yaml:"harvest"`
		Maintenance *maintenanceText    `yaml:"maintenance"`
		Balance     *entry[balanceText] `yaml:"balance"`
		Pack        *entry[packText]    `yaml:"pack"`
		Spread      *entry[spreadText]  `yaml:"spread"`
		Locality    *localityText       `yaml:"locality"`
		Exempt      exemptText          `yaml:"exempt"`
	}
	ownerText struct {
		Match *scalar                `yaml:"match"`
		Busy  []entry[conditionText] `yaml:"busy"`
		Idle  *entry[conditionText]  `yaml:"idle"`
	}
	conditionText struct {
		When *scalar `yaml:"when"`
		For  *scalar `yaml:"for"`
	}
	harvestText struct {
		Bounds   boundsText    `yaml:",inline"`
		Throttle *throttleText `yaml:"throttle"`
		Suspend  *scalar       `yaml:"suspend_after"`
	}
	throttleText struct {
		Weight    *scalar `yaml:"weight"`
		CPU       *scalar `yaml:"cpu"`
		StopAfter *scalar `yaml:"stop_after"`
	}
	maintenanceText struct {
		Bounds  boundsText                     `yaml:",inline"`
		Windows []entry[maintenanceWindowText] `yaml:"windows"`
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
	objectiveText struct {
		Weight    *scalar `yaml:"weight"`
		LeastGain *scalar `yaml:"least_gain"`
		Interval  *scalar `yaml:"interval"`
	}
	balanceText struct {
		Bounds    boundsText    `yaml:",inline"`
		Objective objectiveText `yaml:",inline"`
		Measure   *scalar       `yaml:"measure"`
	}
	packText struct {
		Bounds    boundsText    `yaml:",inline"`
		Objective objectiveText `yaml:",inline"`
		MaxLoad   *scalar       `yaml:"max_load"`
	}
	spreadText struct {
		Bounds    boundsText    `yaml:",inline"`
		Objective objectiveText `yaml:",inline"`
	}
	boundsText struct {
		CoolDown     *scalar             `yaml:"cool_down"`
		MovesPerHour *scalar             `yaml:"moves_per_hour"`
		Bandwidth    *scalar             `yaml:"bandwidth"`
		PerLink      *scalar             `yaml:"per_link_per_hour"`
		QuietHours   []entry[windowText] `yaml:"quiet_hours"`
		Exempt       exemptText          `yaml:"exempt"`
	}
	exemptText struct {
		Clusters []scalar `yaml:"clusters"`
		Guests   []scalar `yaml:"guests"`
	}
)

// Parse reads a policy file. The error is a *LineError with the first wrong line, if it is in a line.
func Parse(text string) (*Policy, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("the policy has %d bytes; it may have %d", len(text), MaxText)
	}
	var f file
	if err := decode(text, &f); err != nil {
		var line *LineError
		var kind *yaml.TypeError
		var node *yaml.UnexpectedNodeTypeError
		var at yaml.Error
		switch {
		case errors.As(err, &line):
			return nil, line
		case errors.As(err, &kind) && kind.Token != nil:
			return nil, &LineError{kind.Token.Position.Line, wanted(kind.DstType.Kind().String() == "slice")}
		case errors.As(err, &node) && node.Token != nil:
			return nil, &LineError{node.Token.Position.Line, wanted(node.Expected == ast.SequenceType)}
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
	bound(&r, "owners", f.Owners)
	for _, o := range f.Owners {
		if r.err != nil {
			break
		}
		p.Owners = append(p.Owners, r.owner(o))
	}
	if f.Harvest != nil {
		p.Harvest = r.harvest(f.Harvest)
	}
	if f.Maintenance != nil {
		p.Maintenance = r.maintenance(f.Maintenance)
	}
	r.rebalancing(p, &f)
	if f.Locality != nil {
		p.Locality = r.locality(f.Locality)
	}
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// decode reads the YAML of a policy. It checks the tokens before it parses them, since some small texts cost the parser
// minutes.
func decode(text string, f *file) error {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if before, _, found := strings.Cut(text, "\r"); found {
		return &LineError{1 + strings.Count(before, "\n"), `a carriage return stands within the line; end lines with \n or \r\n`}
	}
	line, empty := 0, 0
	for content := range strings.Lines(text) {
		line++
		if strings.TrimSpace(content) == "" {
			empty++
		}
		if empty > maxEmptyLines {
			return &LineError{line, fmt.Sprintf("the file has more than %d empty lines; remove some", maxEmptyLines)}
		}
	}
	tokens := lexer.Tokenize(text)
	if err := check(tokens); err != nil {
		return err
	}
	parsed, err := parser.Parse(tokens, 0)
	if err != nil {
		return err
	}
	for i, document := range parsed.Docs {
		if document.Body == nil {
			continue
		}
		if i > 0 {
			return &LineError{document.Body.GetToken().Position.Line, "a second document begins here; a policy is one document"}
		}
		var missing nulls
		ast.Walk(&missing, document.Body)
		if missing.err != nil {
			return missing.err
		}
		if err := yaml.NodeToValue(document.Body, f, yaml.Strict()); err != nil {
			return err
		}
	}
	return nil
}

// refused are the parts of YAML that a policy must not have.
var refused = map[token.Type]string{
	token.AnchorType:     "a policy has no anchors (&); write the value where it is used, or in quotation marks if it begins with &",
	token.AliasType:      "a policy has no aliases (*); repeat the value, or write it in quotation marks if it begins with *",
	token.MergeKeyType:   "a policy has no merge keys (<<); repeat the keys",
	token.TagType:        "a policy has no tags (!); write a value that begins with ! in quotation marks",
	token.DirectiveType:  "a policy has no directives (%); remove the line",
	token.MappingKeyType: "a policy has no keys with ?; write `key: value`",
}

// block is a list or a group of keys that is written with indentation.
type block struct {
	column int
	list   bool
	keys   int
}

// check refuses parts of YAML that a policy must not have, and texts that cost the parser far more than their size.
func check(tokens token.Tokens) error {
	var (
		open    []block // by column
		flow    int     // open brackets
		content bool    // the text has content before this token
		ended   bool    // by ...
	)
	enter := func(column int, list bool) *block {
		for len(open) > 0 {
			last := open[len(open)-1]
			if last.column < column || last.column == column && (list || !last.list) {
				break
			}
			open = open[:len(open)-1]
		}
		if n := len(open); n == 0 || open[n-1].column < column || open[n-1].list != list {
			open = append(open, block{column: column, list: list})
		}
		return &open[len(open)-1]
	}
	for i, t := range tokens {
		fail := func(format string, a ...any) error { return &LineError{t.Position.Line, fmt.Sprintf(format, a...)} }
		if i >= maxTokens {
			return fail("the file has more than %d words and punctuation marks; shorten it with patterns", maxTokens)
		}
		if reason, is := refused[t.Type]; is {
			return fail("%s", reason)
		}
		switch t.Type {
		case token.CommentType:
			continue
		case token.DocumentHeaderType:
			if content {
				return fail("a second document begins here; a policy is one document: remove the line ---")
			}
		case token.DocumentEndType:
			ended = true
			continue
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow = max(0, flow-1)
		case token.SequenceEntryType:
			if flow == 0 {
				enter(t.Position.Column, true)
			}
		case token.MappingValueType:
			if i == 0 || tokens[i-1].Type == token.SequenceEndType || tokens[i-1].Type == token.MappingEndType || len(tokens[i-1].Value) > maxKey {
				return fail("the text before the colon is not a key; write `key: value`, and quotation marks around a value with a colon")
			}
			if flow > 0 {
				break
			}
			group := enter(tokens[i-1].Position.Column, false)
			if group.keys++; group.keys > maxKeys {
				return fail("the group has more than %d keys; a policy knows fewer", maxKeys)
			}
		}
		if ended {
			return fail("the document has ended with ...; remove that line")
		}
		content = true
		if len(open)+flow > maxDepth {
			return fail("lists and groups of keys lie in each other more than %d deep; a policy needs fewer", maxDepth)
		}
	}
	return nil
}

// nulls finds the first key or entry without a value.
type nulls struct{ err error }

// Visit looks at a node, and lets Walk go on below it.
func (n *nulls) Visit(node ast.Node) ast.Visitor {
	if n.err != nil {
		return nil
	}
	switch v := node.(type) {
	case *ast.MappingValueNode:
		if v.Value.Type() == ast.NullType {
			n.err = &LineError{v.Key.GetToken().Position.Line, fmt.Sprintf("%s: it has no value; write one, or remove the key", v.Key.GetToken().Value)}
		}
	case *ast.NullNode:
		n.err = &LineError{v.GetToken().Position.Line, "an entry has no value; write one, or remove the entry"}
	}
	return n
}

// wanted says what is expected in a place.
func wanted(list bool) string {
	if list {
		return "a list is wanted here, such as [a, b]"
	}
	return "a group of keys is wanted here, such as {key: value}"
}

// reader checks values, and keeps the first error. It compiles nothing after an error.
type reader struct {
	zone        *time.Location
	expressions int // that were compiled
	text        int // their bytes
	err         error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// bound bounds the entries of a list.
func bound[T interface{ errorf(string, ...any) error }](r *reader, what string, list []T) {
	if len(list) > maxList {
		r.fail(list[maxList].errorf("%s: there are %d, and may be %d; a pattern or an expression can stand for many", what, len(list), maxList))
	}
}

func (r *reader) readZone(s *scalar) {
	zone, err := time.LoadLocation(s.text)
	if err != nil || s.text == "" {
		r.fail(s.errorf("time_zone: %q is not known; it is a name such as Asia/Tokyo", s.text))
		return
	}
	r.zone = zone
}

// wait reads a time such as "90s", "5m" or "1h30m". missing is the result if nothing is written.
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

// expression compiles an expression.
func (r *reader) expression(env *cel.Env, s *scalar, key string) *Expression {
	r.expressions, r.text = r.expressions+1, r.text+len(s.text)
	switch {
	case r.err != nil:
	case r.expressions > maxExpressions:
		r.fail(s.errorf("%s: this is one more than the %d expressions that a policy may have; one entry can stand for many hosts", key, maxExpressions))
	case r.text > maxExpressionsText && len(s.text) <= maxExpression:
		r.fail(s.errorf("%s: the expressions of the policy have more than %d bytes together, up to here; shorten them", key, maxExpressionsText))
	default:
		e, err := compile(env, s.text)
		if err != nil {
			if _, measured := compile(measuring, s.text); measured == nil {
				err = errors.New("it uses what is measured of a host; only `when` can")
			}
			r.fail(s.errorf("%s: %v", key, err))
		}
		return e
	}
	return nil
}

// match reads the expression that chooses hosts. If it is missing, all hosts match.
func (r *reader) match(s *scalar) *Expression {
	if s == nil {
		return everyHost
	}
	return r.expression(matching, s, "match")
}

func (r *reader) owner(o entry[ownerText]) *OwnerRule {
	rule := &OwnerRule{Match: r.match(o.value.Match)}
	busy, idle := o.value.Busy, o.value.Idle
	bound(r, "busy", busy)
	for _, c := range busy {
		rule.Busy = append(rule.Busy, r.condition(c, "busy"))
	}
	switch {
	case len(busy) == 0 && idle != nil:
		r.fail(o.errorf("owners: the entry has `idle` without `busy`: nothing would ever withdraw its hosts; add `busy`, or remove `idle` to exempt them"))
	case len(busy) > 0 && idle == nil:
		r.fail(o.errorf("owners: the entry has `busy` without `idle`: its hosts would never take guests again; add `idle`"))
	case idle != nil:
		rule.Idle = r.condition(*idle, "idle")
	}
	return rule
}

func (r *reader) condition(c entry[conditionText], key string) Condition {
	if c.value.When == nil {
		r.fail(c.errorf("%s: the condition has no `when`; add an expression", key))
		return Condition{}
	}
	return Condition{When: r.expression(measuring, c.value.When, key), For: r.wait(c.value.For, "for", 0)}
}

func (r *reader) harvest(h *harvestText) *Harvest {
	made := &Harvest{Bounds: r.bounds(h.Bounds, 0), Throttle: Throttle{StopAfter: -1}, SuspendAfter: r.wait(h.Suspend, "suspend_after", -1)}
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
	return uint32(r.percent(s, "cpu", 0.1) * 10)
}

// percent reads a percentage that is not below least.
func (r *reader) percent(s *scalar, key string, least float64) float64 {
	percent, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(s.text, "%")), 64)
	if err != nil || !strings.HasSuffix(s.text, "%") || !(percent >= least && percent <= 100) {
		r.fail(s.errorf("%s: %q is not a percentage from %g%% to 100%%", key, s.text, least))
		return 0
	}
	return percent
}

func (r *reader) maintenance(m *maintenanceText) *Maintenance {
	made := &Maintenance{Bounds: r.bounds(m.Bounds, 0)}
	bound(r, "windows", m.Windows)
	for _, w := range m.Windows {
		if r.err != nil {
			break
		}
		made.Windows = append(made.Windows, MaintenanceWindow{Match: r.match(w.value.Match), Lead: r.wait(w.value.Lead, "lead", 0),
			Window: r.window(w.value.Window, w.line, "windows")})
	}
	return made
}

// bounds reads bounds. coolDown is the cool-down if none is written.
func (r *reader) bounds(l boundsText, coolDown time.Duration) Bounds {
	made := Bounds{CoolDown: r.wait(l.CoolDown, "cool_down", coolDown), MovesPerHour: r.number(l.MovesPerHour, "moves_per_hour", 1, 1_000_000), Exempt: r.exempt(l.Exempt)}
	if l.Bandwidth != nil {
		made.Bandwidth = r.bandwidth(l.Bandwidth)
	}
	if l.PerLink != nil {
		made.PerLink = r.perLink(l.PerLink)
	}
	bound(r, "quiet_hours", l.QuietHours)
	for _, w := range l.QuietHours {
		made.QuietHours = append(made.QuietHours, r.window(w.value, w.line, "quiet_hours"))
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

// perLink reads a number of bytes: "20GB" or "20GiB".
func (r *reader) perLink(s *scalar) uint64 {
	n, err := humanize.ParseBytes(s.text)
	if err != nil || n < 1<<20 || n > 1<<50 {
		r.fail(s.errorf("per_link_per_hour: %q is not a size from 1MiB to 1PiB, such as 20GB", s.text))
	}
	return n
}

func (r *reader) exempt(e exemptText) (made Exempt) {
	patterns := func(list []scalar, what string) (texts []string) {
		bound(r, what, list)
		for _, s := range list {
			if _, err := path.Match(s.text, ""); err != nil || s.text == "" {
				r.fail(s.errorf("%s: %q is not a name, nor a pattern such as md-*", what, s.text))
			}
			texts = append(texts, s.text)
		}
		return texts
	}
	return Exempt{Clusters: patterns(e.Clusters, "clusters"), Guests: patterns(e.Guests, "guests")}
}

func (r *reader) window(w windowText, line int, key string) (made Window) {
	once, weekly := w.Begin != nil || w.End != nil, w.From != nil || w.To != nil || len(w.Days) > 0
	switch {
	case once == weekly || once && (w.Begin == nil || w.End == nil) || weekly && (w.From == nil || w.To == nil):
		r.fail(&LineError{line, key + ": a window has `begin` and `end`, or `from` and `to` and perhaps `days`"})
	case once:
		made.Begin, made.End = r.instant(w.Begin), r.instant(w.End)
		if r.err == nil && !made.Begin.Before(made.End) {
			r.fail(w.End.errorf("end: it is not after begin"))
		}
	default:
		made.Zone, made.From, made.To = r.zone, r.hour(w.From), r.hour(w.To)
		bound(r, "days", w.Days)
		for _, d := range w.Days {
			made.Days = append(made.Days, r.day(d))
		}
	}
	return made
}

// instant reads a time with a zone. Without one, the file's zone counts.
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
	r.fail(s.errorf("%q is not a time such as 2026-12-01 08:00", s.text))
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
	r.fail(s.errorf("%q is not a time of day such as 22:30; write it in quotation marks", s.text))
	return 0
}

func (r *reader) day(s scalar) time.Weekday {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if name := d.String(); strings.EqualFold(s.text, name) || strings.EqualFold(s.text, name[:3]) {
			return d
		}
	}
	r.fail(s.errorf("days: %q is not a day such as mon or monday", s.text))
	return 0
}
