package vm

// ending.go - finds out why a domain ended, from libvirt's events and from the domain's log.

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"libvirt.org/go/libvirt"

	"watari/agent/domain"
)

// logDir is where libvirt keeps a log of each domain's QEMU.
const logDir = "/var/log/libvirt/qemu"

// Ending is how a domain ended.
type Ending int

// The endings.
const (
	EndingUnknown   Ending = iota
	EndingShutdown         // QEMU ended in an orderly way, at the guest's or the host's request
	EndingGuest            // the guest powered itself off or reset itself; a kernel that panics does the latter
	EndingHost             // something on the host told QEMU to end, with a signal for instance
	EndingDestroyed        // libvirt was asked to end it
	EndingCrashed          // QEMU ended without a message: it crashed or was killed
	EndingPanicked         // the guest reported a panic
)

func (e Ending) String() string {
	switch e {
	case EndingShutdown:
		return "the guest or the host shut it down"
	case EndingGuest:
		return "the guest powered itself off or reset itself"
	case EndingHost:
		return "something on the host told its QEMU to end"
	case EndingDestroyed:
		return "libvirt was asked to end it"
	case EndingCrashed:
		return "its QEMU crashed or was killed"
	case EndingPanicked:
		return "the guest panicked"
	}
	return "unknown"
}

// endings keeps how domains ended until Ended is called.
type endings struct {
	lock  sync.Mutex
	known map[string]Ending // by uid
}

// mostEndings bounds the number of kept endings.
const mostEndings = 1024

func newEndings() *endings { return &endings{known: map[string]Ending{}} }

// note records a lifecycle event of a domain.
func (e *endings) note(uid string, event libvirt.DomainEventType, detail int) {
	e.lock.Lock()
	defer e.lock.Unlock()
	if event == libvirt.DOMAIN_EVENT_STARTED || len(e.known) >= mostEndings {
		delete(e.known, uid)
	}
	if ending := nextEnding(e.known[uid], event, detail); ending != EndingUnknown && len(e.known) < mostEndings {
		e.known[uid] = ending
	}
}

func (e *endings) take(uid string) Ending {
	e.lock.Lock()
	defer e.lock.Unlock()
	ending := e.known[uid]
	delete(e.known, uid)
	return ending
}

// nextEnding updates an ending with another event. The event "shutdown" tells who ended the domain, and comes before
// "stopped".
func nextEnding(now Ending, event libvirt.DomainEventType, detail int) Ending {
	switch event {
	case libvirt.DOMAIN_EVENT_SHUTDOWN:
		switch libvirt.DomainEventShutdownDetailType(detail) {
		case libvirt.DOMAIN_EVENT_SHUTDOWN_GUEST:
			return EndingGuest
		case libvirt.DOMAIN_EVENT_SHUTDOWN_HOST:
			return EndingHost
		}
		return EndingShutdown
	case libvirt.DOMAIN_EVENT_CRASHED:
		return EndingPanicked
	case libvirt.DOMAIN_EVENT_STOPPED:
		if now != EndingUnknown {
			return now
		}
		switch libvirt.DomainEventStoppedDetailType(detail) {
		case libvirt.DOMAIN_EVENT_STOPPED_SHUTDOWN:
			return EndingShutdown
		case libvirt.DOMAIN_EVENT_STOPPED_DESTROYED:
			return EndingDestroyed
		case libvirt.DOMAIN_EVENT_STOPPED_FAILED:
			return EndingCrashed
		case libvirt.DOMAIN_EVENT_STOPPED_CRASHED:
			return EndingPanicked
		}
	}
	return now
}

// Ended returns how a guest's domain ended, if that is known, and what its last QEMU wrote to its log. It does not call
// libvirt. It forgets the events of the ending.
func (l *Libvirt) Ended(uid, name string) domain.End {
	var said []string
	const most = 64 << 10
	reason := ""
	if file, err := os.Open(filepath.Join(logDir, NamePrefix+name+".log")); err == nil {
		defer file.Close()
		buf := make([]byte, most)
		offset := int64(0)
		if info, err := file.Stat(); err == nil {
			offset = max(info.Size()-most, 0)
		}
		n, _ := file.ReadAt(buf, offset)
		reason, said = readLog(string(buf[:n]))
	}
	ending := l.endings.take(uid)
	if ending == EndingUnknown { // it ended while there was no connection
		ending = loggedEndings[reason]
	}
	if ending == EndingUnknown {
		return domain.End{Said: said}
	}
	return domain.End{How: ending.String(), Said: said}
}

// loggedEndings are libvirt's words in the log.
var loggedEndings = map[string]Ending{"shutdown": EndingShutdown, "destroyed": EndingDestroyed, "crashed": EndingCrashed}

var (
	logTime  = regexp.MustCompile(`^\d{4}-\d\d-\d\d [0-9:.]+[+-]\d{4}: `)
	logStart = regexp.MustCompile(`^starting up libvirt version`)
	logEnd   = regexp.MustCompile(`^shutting down, reason=(\w+)`)
	logUsual = regexp.MustCompile(`^(initiating migration|char device |Domain id=\d+ is tainted)|: -chardev \S+ info: |terminating on signal 15 from pid \d+ \(\S*(libvirtd|virtqemud)\)`)
)

// readLog reads the log of a domain from QEMU's last start on. It returns libvirt's reason for the end, and QEMU's own
// unusual lines. It skips the line about a signal: libvirt ends every QEMU by a signal after its guest has shut down.
func readLog(text string) (reason string, said []string) {
	command := false // within the command line, whose lines end in a backslash
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		plain := logTime.ReplaceAllString(line, "")
		switch end := logEnd.FindStringSubmatch(plain); {
		case logStart.MatchString(plain) && plain != line:
			reason, said, command = "", nil, true
		case command:
			command = strings.HasSuffix(plain, `\`)
		case end != nil && plain != line:
			reason = end[1]
		case plain != "" && !logUsual.MatchString(plain):
			said = append(said, plain)
		}
	}
	return reason, said
}
