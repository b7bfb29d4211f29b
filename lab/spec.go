// WAN: the shape of the network between sites, and its text form.

package lab

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// WAN describes the shape of the traffic between sites. The zero value means unshaped.
type WAN struct {
	RoundTrip time.Duration `json:"round_trip"` // added between two sites, half in each direction
	Rate      uint64        `json:"rate"`       // bit/s of each site in each direction; 0: unlimited
	Loss      float64       `json:"loss"`       // probability, 0 to 1, that a packet between two sites is lost
}

// Shaped reports whether w limits anything.
func (w WAN) Shaped() bool { return w != WAN{} }

// ParseWAN reads "20ms,200mbit,1%": round trip, rate and loss, each at most once, in any order. "none" means unshaped.
func ParseWAN(text string) (WAN, error) {
	var w WAN
	if text == "" || text == "none" {
		return w, nil
	}
	seen := map[string]bool{}
	for _, part := range strings.Split(text, ",") {
		part = strings.ToLower(strings.TrimSpace(part))
		kind, err := w.parsePart(part)
		if err != nil {
			return WAN{}, fmt.Errorf("WAN %q: %w", text, err)
		}
		if seen[kind] {
			return WAN{}, fmt.Errorf("WAN %q: %s is given twice", text, kind)
		}
		seen[kind] = true
	}
	return w, nil
}

var rateUnits = []struct {
	suffix string
	bits   float64
}{{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"bit", 1}}

func (w *WAN) parsePart(part string) (kind string, err error) {
	if number, ok := strings.CutSuffix(part, "%"); ok {
		loss, err := strconv.ParseFloat(number, 64)
		if err != nil || !(loss >= 0 && loss < 100) {
			return "", fmt.Errorf("loss %q: must be 0%% to below 100%%", part)
		}
		w.Loss = loss / 100
		return "loss", nil
	}
	for _, unit := range rateUnits {
		number, ok := strings.CutSuffix(part, unit.suffix)
		if !ok {
			continue
		}
		rate, err := strconv.ParseFloat(number, 64)
		if err != nil || !(rate*unit.bits >= 8e3 && rate*unit.bits <= 1e12) {
			return "", fmt.Errorf("rate %q: must be a number from 8kbit to 1000gbit", part)
		}
		w.Rate = uint64(rate * unit.bits)
		return "rate", nil
	}
	trip, err := time.ParseDuration(part)
	if err != nil {
		return "", fmt.Errorf("%q is neither a round trip (20ms) nor a rate (200mbit) nor a loss (1%%)", part)
	}
	if trip < 0 || trip > 10*time.Second {
		return "", fmt.Errorf("round trip %q: must be 0 to 10s", part)
	}
	w.RoundTrip = trip
	return "round trip", nil
}

// String returns the form that ParseWAN reads.
func (w WAN) String() string {
	var parts []string
	if w.RoundTrip > 0 {
		parts = append(parts, w.RoundTrip.String())
	}
	if w.Rate > 0 {
		parts = append(parts, formatRate(w.Rate))
	}
	if w.Loss > 0 {
		parts = append(parts, strconv.FormatFloat(w.Loss*100, 'g', 6, 64)+"%")
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ",")
}

func formatRate(rate uint64) string {
	for _, unit := range []struct {
		suffix string
		bits   uint64
	}{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}} {
		if rate%unit.bits == 0 {
			return strconv.FormatUint(rate/unit.bits, 10) + unit.suffix
		}
	}
	return strconv.FormatUint(rate, 10) + "bit"
}
