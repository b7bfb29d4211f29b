package watchdog

// client.go - the agent's end: starts the watchdog if none runs, and tells it of guests.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Time limits of the client.
const (
	answerTime = 3 * time.Second
	startTime  = 10 * time.Second
	startPause = 20 * time.Millisecond
)

// Client speaks to a host's watchdog. It is safe for concurrent use.
type Client struct {
	Path string // of the watchdog's socket
	// Command returns the command that starts a watchdog, which serves Path.
	Command func() *exec.Cmd

	mu   sync.Mutex
	conn net.Conn // nil: not connected
	in   *json.Decoder
}

// Keep tells the watchdog all guests with leases, and until when each may run, by Clock. After Keep has returned nil, the
// watchdog ends each guest at its time, unless a later call extends it or leaves the guest out. After an error, it may not know a guest
// that begins now. unguarded has the guests that would outlive the watchdog, and the reason. Keep starts a watchdog if none runs and
// guests is not empty.
func (c *Client) Keep(guests map[string]time.Duration) (unguarded map[string]string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if guests == nil {
		guests = map[string]time.Duration{}
	}
	r, err := c.ask(Request{Guests: guests}, len(guests) > 0)
	for late := time.Now().Add(searchTime + endEvery); err == nil && r.Blind != "" && time.Now().Before(late); { // a search is under way
		time.Sleep(endEvery)
		r, err = c.ask(Request{Guests: guests}, len(guests) > 0)
	}
	if err == nil && r.Blind != "" {
		err = fmt.Errorf("the watchdog, which ends guests whose leases end, does not see new guests: %s", r.Blind)
	}
	return r.Unguarded, err
}

// Kept returns the guests that the watchdog knows, and until when each may run; nil: no watchdog runs. It returns an error if one runs
// and does not answer.
func (c *Client) Kept() (map[string]time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.ask(Request{}, false)
	return r.Guests, err
}

// ask sends a request to the watchdog. If an existing connection fails, it connects once more.
func (c *Client) ask(r Request, start bool) (Response, error) {
	if c.conn != nil {
		if answer, err := c.exchange(r); err == nil {
			return answer, nil
		}
	}
	if err := c.connect(start); err != nil {
		if !start && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)) {
			return Response{}, nil // no watchdog runs, so none knows any guests
		}
		return Response{}, fmt.Errorf("reach the watchdog, which ends guests whose leases end: %w", err)
	}
	answer, err := c.exchange(r)
	if err != nil {
		return answer, fmt.Errorf("ask the watchdog, which ends guests whose leases end: %w", err)
	}
	return answer, nil
}

func (c *Client) exchange(r Request) (answer Response, err error) {
	if err = c.conn.SetDeadline(time.Now().Add(answerTime)); err == nil {
		if err = json.NewEncoder(c.conn).Encode(r); err == nil {
			err = c.in.Decode(&answer)
		}
	}
	if err != nil {
		c.conn.Close()
		c.conn = nil
	}
	return answer, err
}

// connect connects to the watchdog. If none runs and start is true, it starts one.
func (c *Client) connect(start bool) error {
	conn, err := net.Dial("unix", c.Path)
	if err != nil && start {
		command := c.Command()
		command.Dir, command.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true} // signals to the agent's session must not reach the watchdog
		if err := command.Start(); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- command.Wait() }()
		for late := time.Now().Add(startTime); ; time.Sleep(startPause) {
			if conn, err = net.Dial("unix", c.Path); err == nil || time.Now().After(late) {
				break
			}
			select {
			case why := <-ended:
				return fmt.Errorf("it has ended: %v", why)
			default:
			}
		}
	}
	if err != nil {
		return err
	}
	c.conn, c.in = conn, json.NewDecoder(conn)
	return nil
}
