package lab

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseWAN(t *testing.T) {
	for text, want := range map[string]WAN{
		"":                  {},
		"none":              {},
		"20ms":              {RoundTrip: 20 * time.Millisecond},
		"20ms,200mbit":      {RoundTrip: 20 * time.Millisecond, Rate: 200e6},
		"20ms,200mbit,1%":   {RoundTrip: 20 * time.Millisecond, Rate: 200e6, Loss: 0.01},
		"0.5%, 1.5Gbit, 1s": {RoundTrip: time.Second, Rate: 1500e6, Loss: 0.005},
		"64kbit":            {Rate: 64e3},
		"9600bit":           {Rate: 9600},
		"250us":             {RoundTrip: 250 * time.Microsecond},
	} {
		got, err := ParseWAN(text)
		if err != nil || got != want {
			t.Errorf("ParseWAN(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseWANRefuses(t *testing.T) {
	for text, part := range map[string]string{
		"20parsecs":   "20parsecs",
		"20ms,30ms":   "twice",
		"1mbit,2mbit": "twice",
		"-5ms":        "-5ms",
		"1h":          "1h",
		"100%":        "100%",
		"-1%":         "-1%",
		"NaN%":        "nan%",
		"0mbit":       "0mbit",
		"nanmbit":     "nanmbit",
		"1e30gbit":    "1e30gbit",
		"20ms,,1%":    `""`,
		"fastmbit":    "fastmbit",
	} {
		if w, err := ParseWAN(text); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("ParseWAN(%q) = %+v, %v; want an error that names %q", text, w, err, part)
		}
	}
}

func TestWANTextIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := WAN{
			RoundTrip: time.Duration(rapid.IntRange(0, 10e9).Draw(t, "round trip")),
			Rate:      rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(8e3, 1e12)).Draw(t, "rate"),
			Loss:      float64(rapid.IntRange(0, 9999).Draw(t, "loss")) / 1e4,
		}
		got, err := ParseWAN(w.String())
		if err != nil || got.RoundTrip != w.RoundTrip || got.Rate != w.Rate || got.Loss-w.Loss > 1e-9 || w.Loss-got.Loss > 1e-9 {
			t.Fatalf("%+v is written %q and read %+v, %v", w, w, got, err)
		}
	})
}
