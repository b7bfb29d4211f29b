package history

// series.go - the values of one host or guest over time.

import (
	"math"
	"time"
)

// series is rows of values over time, in each resolution.
type series struct {
	rings [len(resolutions)]ring
	steps [len(resolutions)]step
}

// step is the step of a resolution to which samples are being added.
type step struct {
	number  int64 // since 1970
	row     []float64
	samples []int // for each value
}

// ring has the rows of one resolution, in pages by number. A page's number is its first step divided by the page's length.
type ring map[int64][]small

// small is the upper half of a float32. Its three digits are enough for a measurement of one second.
type small uint16

func toSmall(v float64) small {
	if math.IsNaN(v) {
		return absent
	}
	bits := math.Float32bits(float32(min(v, math.MaxFloat32/2)))
	return small((bits + 0x7fff + bits>>16&1) >> 16) // to the nearest, ties to even
}

func (s small) float() float64 { return float64(math.Float32frombits(uint32(s) << 16)) }

// absent is NaN.
const absent small = 0x7fc0

// add adds a sample.
func (s *series) add(now time.Time, values []float64, folds []fold) {
	for i, r := range resolutions {
		at := &s.steps[i]
		if number := now.UnixNano() / int64(r.step); at.number != number || at.row == nil {
			*at = s.begin(i, number, now, len(values))
		}
		for v, value := range values {
			at.take(v, value, folds[v])
		}
		if s.rings[i] == nil {
			s.rings[i] = ring{}
		}
		s.rings[i].put(r, at.number, at.row)
	}
}

// begin begins a step. If this process was started in the middle of the step, the step already has a row, which counts as if
// there had been a sample every second.
func (s *series) begin(resolution int, number int64, now time.Time, width int) step {
	begun := step{number: number, row: make([]float64, width), samples: make([]int, width)}
	r := resolutions[resolution]
	rows := s.rings[resolution][number/int64(r.page)]
	at := int(number%int64(r.page)) * width
	for v := range begun.row {
		begun.row[v] = math.NaN()
		if at+v < len(rows) && rows[at+v] != absent {
			begun.row[v] = rows[at+v].float()
			begun.samples[v] = max(1, int(now.Sub(time.Unix(0, number*int64(r.step)))/time.Second))
		}
	}
	return begun
}

// take adds a value of a sample to the step.
func (s *step) take(v int, value float64, how fold) {
	if math.IsNaN(value) {
		return
	}
	s.samples[v]++
	switch before := s.row[v]; {
	case s.samples[v] == 1:
		s.row[v] = value
	case how == least:
		s.row[v] = min(before, value)
	default:
		s.row[v] = before + (value-before)/float64(s.samples[v])
	}
}

// put sets the row of a step, and frees pages that are too old. If the clock goes back, put overwrites rows.
func (r ring) put(of resolution, number int64, row []float64) {
	page := number / int64(of.page)
	rows := r[page]
	if rows == nil {
		rows = make([]small, of.page*len(row))
		for i := range rows {
			rows[i] = absent
		}
		r[page] = rows
		r.expire(of, page)
	}
	at := int(number%int64(of.page)) * len(row)
	for v, value := range row {
		rows[at+v] = toSmall(value)
	}
}

// expire frees pages that are too old, or newer than now because the clock was wrong.
func (r ring) expire(of resolution, now int64) {
	for page := range r {
		if page <= now-int64(of.pages) || page > now {
			delete(r, page)
		}
	}
}

// late is how much later than it was made a request for a resolution's whole reach may be answered.
const late = time.Minute

// read calls each with the rows since a time, oldest first. Where a finer resolution reaches, the rows are the finer ones. A
// row has width values; read leaves out rows without any value.
func (s *series) read(now, since time.Time, width int, each func(at time.Time, step time.Duration, row []float64)) {
	if s == nil {
		return
	}
	for i := len(resolutions) - 1; i > 0; i-- {
		if finer := resolutions[i-1].reach(); now.Sub(since) > finer+late {
			r := resolutions[i]
			end := now.Add(-finer).UnixNano()/int64(r.step) + 1 // the first step that the finer resolution has completely
			s.readSteps(i, now, since, end, width, each)
			since = time.Unix(0, end*int64(r.step))
		}
	}
	s.readSteps(0, now, since, now.UnixNano()/int64(resolutions[0].step)+1, width, each)
}

// readSteps is read for the steps of a resolution up to the one with the number end.
func (s *series) readSteps(i int, now, since time.Time, end int64, width int, each func(at time.Time, step time.Duration, row []float64)) {
	r := resolutions[i]
	row := make([]float64, width)
	first := max(since.UnixNano(), now.Add(-r.reach()-time.Duration(r.page)*r.step).UnixNano()) / int64(r.step)
	for number := first; number < end; number++ {
		rows := s.rings[i][number/int64(r.page)]
		at := int(number%int64(r.page)) * width
		if at+width > len(rows) {
			continue
		}
		known := false
		for v := range row {
			row[v] = rows[at+v].float()
			known = known || !math.IsNaN(row[v])
		}
		if known {
			each(time.Unix(0, number*int64(r.step)), r.step, row)
		}
	}
}

// empty frees pages that are too old, and reports whether none remains.
func (s *series) empty(now time.Time) bool {
	left := 0
	for i, r := range resolutions {
		s.rings[i].expire(r, now.UnixNano()/int64(r.step)/int64(r.page))
		left += len(s.rings[i])
	}
	return left == 0
}
