// Package auditlog keeps the manager's audit log: who called which procedure, from where, and which calls were refused. Each
// call is one line of JSON in a file. Unlike the history of events, the log contains refused calls and reads, and no call
// can change or remove a line.
package auditlog

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/encoding/protojson"
	"gopkg.in/natefinch/lumberjack.v2"

	"watari/internal/printable"

	v1 "watari/api/watariv1"
)

const (
	// When a file reaches fileSize, MB, it is renamed to audit-TIME.log; the newest keptFiles of these are kept.
	fileSize  = 16
	keptFiles = 16
	// textLimit bounds texts that callers choose, bytes.
	textLimit = 300
	// perSecond and burst limit how many calls of one caller are recorded, so that no caller can push others' calls out of
	// the log. An entry counts once for each unit of its bytes: a caller who sends long texts fills the log no faster. At this
	// rate, one caller fills the kept files in two days.
	perSecond = 5
	burst     = 100
	unit      = 300 // bytes
)

// Log is an audit log. It is safe for concurrent use.
type Log struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	file    *lumberjack.Logger
	callers map[string]*budget // by caller; "" is all unknown callers
	torn    bool               // the file may end with an incomplete line, after a crash or on a full disk
	forward chan string        // entries for a syslog server; nil: there is none
}

type budget struct {
	limit   *rate.Limiter
	leftOut uint32 // calls not recorded since the last recorded one
}

// Open opens the audit log in a directory, and creates the directory if it is missing.
func Open(dir string, log *slog.Logger) (*Log, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	path := filepath.Join(dir, "audit.log")
	return &Log{path: path, log: log, file: &lumberjack.Logger{Filename: path, MaxSize: fileSize, MaxBackups: keptFiles},
		callers: map[string]*budget{}, torn: true}, nil
}

// Close closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// Record appends an entry. If that fails, the call still goes on, and the program's own log gets an error.
func (l *Log) Record(e *v1.AuditEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	caller := e.Caller
	if caller == "" && e.Error == "" {
		caller = "admitted" // strangers share one budget; their refused calls must not hide that one of them has used a token
	}
	b := l.callers[caller]
	if b == nil {
		b = &budget{limit: rate.NewLimiter(perSecond, burst)}
		l.callers[caller] = b
	}
	if b.limit.TokensAt(e.At.AsTime()) < 1 { // a call that is left out costs little
		b.leftOut++
		return
	}
	e.LeftOut = b.leftOut
	e.Object, e.Error = printable.Line(e.Object, textLimit), printable.Line(e.Error, textLimit)
	line, err := protojson.Marshal(e)
	if err == nil {
		if !b.limit.AllowN(e.At.AsTime(), 1+len(line)/unit) { // with its newline, the line has one byte more
			b.leftOut++
			return
		}
		if err := l.enqueue(line); err != nil {
			l.log.Error("a call was not sent to syslog", "call", e.Call, "caller", e.Caller, "error", err)
		}
		if l.torn {
			line = append([]byte("\n"), line...)
		}
		_, err = l.file.Write(append(line, '\n'))
		l.torn = err != nil
	}
	if err != nil {
		l.log.Error("a call is not in the audit log", "call", e.Call, "caller", e.Caller, "error", err)
		return
	}
	b.leftOut = 0
}

// Last returns the last n entries, or all kept entries if n is 0, oldest first. It skips incomplete lines.
func (l *Log) Last(n int) ([]*v1.AuditEntry, error) {
	aside, err := filepath.Glob(strings.TrimSuffix(l.path, ".log") + "-*.log")
	if err != nil {
		return nil, err
	}
	slices.Sort(aside) // their names are times
	var entries []*v1.AuditEntry
	for _, path := range slices.Backward(append(aside, l.path)) {
		of, err := read(path)
		if err != nil {
			return nil, err
		}
		entries = append(of, entries...)
		if n > 0 && len(entries) >= n {
			return entries[len(entries)-n:], nil
		}
	}
	return entries, nil
}

func read(path string) (entries []*v1.AuditEntry, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) { // nothing was recorded yet, or the file was renamed or removed meanwhile
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		e := &v1.AuditEntry{}
		if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(lines.Bytes(), e) == nil {
			entries = append(entries, e)
		}
	}
	return entries, lines.Err()
}
