package top

// draw.go - draws a picture as text. It is pure.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/output"
	"watari/internal/printable"
	"watari/migration"
)

// headings is the number of lines above the hosts.
const headings = 3

// stripLength is how many pictures a strip shows.
const stripLength = 30

// strips are the latest values of hosts and guests, as shares of their capacity, by name. Hosts' names begin with "/".
type strips map[string][]float64

func (s strips) add(p *picture) {
	there := map[string]bool{}
	put := func(name string, value float64) {
		there[name] = true
		s.put(name, value)
	}
	for _, h := range p.hosts {
		put("/"+h.Meta.Name, hostUse(h, h.GetSample()))
	}
	for _, g := range p.guests {
		put(g.Meta.Name, guestUse(g, p.samples[g.Meta.Uid]))
	}
	for name := range s {
		if !there[name] {
			delete(s, name)
		}
	}
}

// hostUse returns the used share of a host's processors; NaN: not known.
func hostUse(h *v1.Host, sample *v1.HostSample) float64 {
	if sample == nil {
		return math.NaN()
	}
	return (sample.CpuGuests + sample.CpuOwner + sample.CpuSystem) / capacity(h)
}

// guestUse returns the used share of a guest's virtual processors; NaN: not known.
func guestUse(g *v1.Guest, sample *v1.GuestSample) float64 {
	if sample == nil {
		return math.NaN()
	}
	return sample.Cpu / math.Max(1, float64(g.GetShape().GetVcpus()))
}

// history has what hosts and guests used before the first picture, one value for a second, by name as in strips.
type history map[string][]float64

// begin puts the past before the values of strips.
func (s strips) begin(h history) {
	for name, values := range h {
		if now, there := s[name]; there {
			all := slices.Concat(values, now)
			s[name] = all[max(0, len(all)-stripLength):]
		}
	}
}

func (s strips) put(name string, value float64) {
	s[name] = append(s[name], value)
	if over := len(s[name]) - stripLength; over > 0 {
		s[name] = s[name][over:]
	}
}

// draw returns the end of the strip of a host or guest, in length characters.
func (s strips) draw(name string, length int) string {
	bars := []rune(" ▁▂▃▄▅▆▇█")
	var text strings.Builder
	values := s[name][max(0, len(s[name])-length):]
	for range length - len(values) {
		text.WriteByte(' ')
	}
	for _, value := range values {
		if math.IsNaN(value) {
			text.WriteByte('?')
			continue
		}
		text.WriteRune(bars[max(0, min(len(bars)-1, int(math.Ceil(value*float64(len(bars)-1)-0.2))))])
	}
	return text.String()
}

func newPicture(at time.Time, hosts []*v1.Host, guests []*v1.Guest, moves []*v1.Migration) picture {
	p := picture{at: at, hosts: slices.Clone(hosts), guests: guests, on: map[string][]*v1.Guest{}, moves: map[string]*v1.Migration{}, samples: map[string]*v1.GuestSample{}}
	slices.SortStableFunc(p.hosts, func(a, b *v1.Host) int {
		return cmp.Or(strings.Compare(a.GetInfo().GetSite(), b.GetInfo().GetSite()), strings.Compare(a.Meta.Name, b.Meta.Name))
	})
	for _, h := range p.hosts {
		for _, s := range h.GetSample().GetGuests() {
			p.samples[s.Uid] = s
		}
	}
	for _, g := range guests {
		p.on[g.Host] = append(p.on[g.Host], g)
	}
	for _, m := range moves {
		if !migration.Ended(m.State) {
			p.moves[m.Guest] = m
		}
	}
	return p
}

// capacity returns how many processors a host has.
func capacity(h *v1.Host) float64 {
	return cmp.Or(h.GetInfo().GetCpuShare(), math.Max(1, float64(h.GetInfo().GetCores())))
}

const (
	// besides is the width of a line without a strip, with some room for the owner's activity.
	besides = 95
	// besidesNarrow is the same without the columns SYSTEM and OF, and without the owner's activity.
	besidesNarrow = 65
	// leastStrip is the least length of a strip.
	leastStrip = 9
)

// draw returns the picture in lines of at most width characters; 0: no limit. In a narrow terminal, the strips take the place of two
// columns. It leaves out the strips' column if there are no strips, or no room for some of their values.
func draw(p *picture, s strips, width int) string {
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, strings.TrimRight(cut(fmt.Sprintf(format, args...), width), " "))
	}
	length := min(stripLength, width-besides)
	narrow := length < leastStrip
	if narrow {
		length = min(stripLength, width-besidesNarrow)
	}
	if s == nil || length < leastStrip {
		length, narrow = 0, false
	}
	more := func(system, of string) string {
		if narrow {
			return ""
		}
		return fmt.Sprintf(" %7s %7s", system, of)
	}
	strip := func(name string) string {
		if length == 0 {
			return ""
		}
		return s.draw(name, length) + "  "
	}
	heading := ""
	if length > 0 {
		heading = fmt.Sprintf("%-*s  ", length, fmt.Sprintf("LAST %d s", length))
	}
	add("watari top   %s   %s, %s, %s under way", p.at.Format("15:04:05"), output.Count(len(p.hosts), "host"), output.Count(len(p.guests), "guest"), output.Count(len(p.moves), "move"))
	add("")
	add("%-14s %-8s %-12s %7s %7s%s  %s%9s  %s", "HOST", "SITE", "STATE", "GUESTS", "OWNER", more("SYSTEM", "OF"), heading, "FREE", "OWNER'S ACTIVITY")
	for _, h := range p.hosts {
		name, site, sample := h.Meta.Name, printable.Line(h.GetInfo().GetSite(), 40), h.GetSample()
		if sample == nil {
			add("%-14s %-8s %-12s %7s %7s%s  %s%9s  %s", name, site, output.State(h.State), "-", "-", more("-", fmt.Sprintf("%.4g", capacity(h))), strip("/"+name), "-", withdrawn(p.at, h))
		} else {
			add("%-14s %-8s %-12s %7.2f %7.2f%s  %s%9s  %s", name, site, output.State(h.State), sample.CpuGuests, sample.CpuOwner,
				more(fmt.Sprintf("%.2f", sample.CpuSystem), fmt.Sprintf("%.4g", capacity(h))), strip("/"+name), output.Size(sample.MemoryAvailableBytes), joined("; ", withdrawn(p.at, h), moves(sample), activity(sample.GetOwner())))
		}
		for _, g := range p.on[name] {
			use := p.samples[g.Meta.Uid]
			cpu, memory, traffic := "-", "", ""
			if use != nil {
				cpu = fmt.Sprintf("%.2f", use.Cpu)
				memory = output.Size(use.MemoryBytes)
				traffic = fmt.Sprintf("in %s/s, out %s/s", output.Size(uint64(use.Received)), output.Size(uint64(use.Sent)))
			}
			add("  %-21s %-12s %7s %7s%s  %s%9s  %s", g.Meta.Name, output.State(g.State), cpu, "", more("", fmt.Sprint(g.GetShape().GetVcpus())), strip(g.Meta.Name), memory, strings.TrimSpace(p.move(g)+"  "+traffic))
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// move returns the guest's move under way: "to b1, 43 %".
func (p *picture) move(g *v1.Guest) string {
	m := p.moves[g.Meta.Name]
	if m == nil {
		return ""
	}
	text := "to " + m.Target
	if total := m.GetProgress().GetTotalBytes(); total > 0 {
		text += fmt.Sprintf(", %d %%", 100*(total-min(total, m.Progress.RemainingBytes))/total)
	}
	return text
}

// withdrawn describes which policies keep guests from a host: "withdrawn by harvest for 2m5s".
func withdrawn(now time.Time, h *v1.Host) string {
	var parts []string
	for _, w := range h.GetWithdrawn() {
		parts = append(parts, w.GetPolicy()+" for "+output.Age(now, w.GetSince()))
	}
	if len(parts) == 0 {
		return ""
	}
	return "withdrawn by " + strings.Join(parts, ", ")
}

// moves describes the traffic of moves: "moves in 25 MiB/s, out 0 B/s".
func moves(s *v1.HostSample) string {
	if text := output.Moves(s); text != "" {
		return "moves " + text
	}
	return ""
}

// joined joins the parts that are not empty.
func joined(separator string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), separator)
}

// activity describes when the owner was there: "ann, typed 3 s ago".
func activity(a *v1.OwnerActivity) string {
	if a == nil {
		return ""
	}
	var parts []string
	for _, user := range a.Users { // from the host's utmp or logind
		parts = append(parts, printable.Line(user, 32))
	}
	idle := math.Inf(1)
	for _, one := range []*float64{a.InputIdle, a.TerminalIdle} {
		if one != nil {
			idle = min(idle, *one)
		}
	}
	if !math.IsInf(idle, 1) {
		parts = append(parts, "typed "+output.Short(time.Duration(idle*float64(time.Second)))+" ago")
	}
	return strings.Join(parts, ", ")
}

// cut shortens a line to a number of characters; 0: no limit.
func cut(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}
