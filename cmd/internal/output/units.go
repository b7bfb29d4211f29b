package output

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

var unitNames = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}

// Size formats bytes in IEC units: "512 MiB", "1.5 GiB".
func Size(bytes uint64) string {
	value, unit := float64(bytes), 0
	for value >= 1024 && unit < len(unitNames)-1 {
		value /= 1024
		unit++
	}
	if value >= 100 || value == math.Trunc(value) {
		return fmt.Sprintf("%.0f %s", value, unitNames[unit])
	}
	return fmt.Sprintf("%.1f %s", value, unitNames[unit])
}

// ParseSize parses a size: a number and one of K, M, G, T, which are powers of 1024 ("512M", "1.5G", "512MiB").
func ParseSize(text string) (uint64, error) {
	bad := fmt.Errorf("size %q: give a number and a unit, as in 512M or 1.5G (K, M, G, T: powers of 1024)", text)
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := strings.ToUpper(text[len(number):])
	unit = strings.TrimSuffix(strings.TrimSuffix(unit, "B"), "I")
	power := strings.Index("KMGT", unit) + 1
	value, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || len(unit) != 1 || power == 0 {
		return 0, bad
	}
	bytes := value * math.Pow(1024, float64(power))
	if math.IsNaN(bytes) || bytes < 1 || bytes >= 1<<60 {
		return 0, bad
	}
	return uint64(bytes), nil
}

// ParseRate parses a bandwidth in bytes per second: "25M" is 25 MiB/s, "200mbit" is 200 million bits per second.
func ParseRate(text string) (uint64, error) {
	lower := strings.ToLower(text)
	for unit, factor := range map[string]float64{"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8} {
		if number, ok := strings.CutSuffix(lower, unit); ok {
			value, err := strconv.ParseFloat(number, 64)
			if err != nil || !(value > 0) || value > 1e9 {
				return 0, fmt.Errorf("bandwidth %q: give it as in 200mbit or 25M (bytes per second)", text)
			}
			return uint64(value * factor), nil
		}
	}
	bytes, err := ParseSize(strings.TrimSuffix(text, "/s"))
	if err != nil {
		return 0, fmt.Errorf("bandwidth %q: give it as in 200mbit or 25M (bytes per second)", text)
	}
	return bytes, nil
}

// Age formats the time since at: "12s", "5m", "3h", "2d".
func Age(now time.Time, at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return Short(now.Sub(at.AsTime()))
}

// Short formats a duration in one or two units: "0s", "59s", "2m5s", "3h10m", "2d".
func Short(d time.Duration) string {
	seconds := int64(max(d, 0) / time.Second)
	switch {
	case seconds < 60:
		return fmt.Sprintf("%ds", seconds)
	case seconds < 600:
		return fmt.Sprintf("%dm%ds", seconds/60, seconds%60)
	case seconds < 3600:
		return fmt.Sprintf("%dm", seconds/60)
	case seconds < 86400:
		return fmt.Sprintf("%dh%dm", seconds/3600, seconds/60%60)
	}
	return fmt.Sprintf("%dd", seconds/86400)
}

// Time formats a time in the time zone of now, with the day if it is not today's: "14:05:12", "2026-03-01 14:05:12".
func Time(now time.Time, at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	here := at.AsTime().In(now.Location())
	if here.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return here.Format(time.TimeOnly)
	}
	return here.Format(time.DateTime)
}

// Milliseconds formats a duration, with milliseconds if it is short: "69 ms", "4.5 s".
func Milliseconds(ms uint32) string {
	if ms < 1000 {
		return fmt.Sprintf("%d ms", ms)
	}
	if ms < 60_000 {
		return fmt.Sprintf("%.1f s", float64(ms)/1000)
	}
	return Short(time.Duration(ms) * time.Millisecond)
}

// State formats an enum's value without the name of its type: "HOST_STATE_READY" is "ready".
func State(value fmt.Stringer) string {
	text := value.String()
	for _, prefix := range []string{"HOST_STATE_", "CLUSTER_STATE_", "CHECKPOINT_STATE_", "VOLUME_STATE_", "VOLUME_MOVE_STATE_", "RESTORE_STATE_", "GUEST_STATE_", "MIGRATION_STATE_", "RUN_STATE_",
		"ACCELERATION_KIND_", "ROLE_", "SEVERITY_", "SPREAD_", "TRANSPORT_", "RECOVERY_ACT_"} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			text = rest
			break
		}
	}
	if text == "UNSPECIFIED" {
		return ""
	}
	return strings.ReplaceAll(strings.ToLower(text), "_", " ")
}

// Count formats a number of things: "1 guest", "3 guests".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Digest abbreviates a content hash to the part that people compare: "3f786850e387".
func Digest(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	return digest[:min(12, len(digest))]
}
