package output_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"watari/cmd/internal/output"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{"512M": 512 << 20, "512m": 512 << 20, "512MiB": 512 << 20, "512MB": 512 << 20, "1.5G": 3 << 29, "1K": 1024, "2T": 2 << 40, "512 M": 512 << 20} {
		if got, err := output.ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "M", "512", "-1M", "0M", "1e400M", "NaNM", "infM", "512Q", "512MM", "512Mi B", "1 2M", "9999999999T", "0x10M", "512 MiBs"} {
		if got, err := output.ParseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]uint64{"200mbit": 25_000_000, "1Gbit": 125_000_000, "25M": 25 << 20, "25M/s": 25 << 20} {
		if got, err := output.ParseRate(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "200", "mbit", "-5mbit", "0mbit", "nanmbit", "fast"} {
		if got, err := output.ParseRate(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestWholeSizesReadAsTheyAreWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.Uint64Range(1, 1023).Draw(t, "number") << (10 * rapid.IntRange(1, 4).Draw(t, "power"))
		if got, err := output.ParseSize(output.Size(bytes)); err != nil || got != bytes {
			t.Fatalf("%d is written %q and read as %d, %v", bytes, output.Size(bytes), got, err)
		}
	})
}

func TestTimeHasTheDayIfItIsNotTodays(t *testing.T) {
	now := time.Date(2026, 3, 1, 1, 0, 0, 0, time.FixedZone("east", 2*3600))
	for at, want := range map[time.Time]string{now.Add(-30 * time.Minute): "00:30:00", now.Add(-2 * time.Hour): "2026-02-28 23:00:00"} {
		if got := output.Time(now, timestamppb.New(at)); got != want {
			t.Errorf("%v: %q, not %q", at, got, want)
		}
	}
	if got := output.Time(now, nil); got != "" {
		t.Errorf("no time: %q", got)
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0s", 59 * time.Second: "59s", 125 * time.Second: "2m5s", 11 * time.Minute: "11m",
		190 * time.Minute: "3h10m", 49 * time.Hour: "2d"} {
		if got := output.Short(d); got != want {
			t.Errorf("%v: %q, not %q", d, got, want)
		}
	}
}
