package agent

// consoleservice.go - serves guests' consoles to the manager.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"connectrpc.com/connect"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// ListConsoles lists the kept consoles of a guest.
func (s service) ListConsoles(_ context.Context, req *connect.Request[v1.ListConsolesRequest]) (*connect.Response[v1.ListConsolesResponse], error) {
	if err := checkUID(req.Msg.GuestUid); err != nil {
		return nil, err
	}
	response := &v1.ListConsolesResponse{}
	for _, k := range s.consoles.list(req.Msg.GuestUid) {
		response.Consoles = append(response.Consoles, k.proto(s.config.Name))
	}
	return connect.NewResponse(response), nil
}

// Console streams a guest's console from an offset. With Follow, the stream ends when the guest has moved away or
// ended.
func (s service) Console(ctx context.Context, req *connect.Request[v1.ConsoleRequest], stream *connect.ServerStream[v1.ConsoleResponse]) error {
	uid := req.Msg.GuestUid
	if err := checkUID(uid); err != nil {
		return err
	}
	path, follow := s.consoles.path(uid), req.Msg.Follow
	if req.Msg.Epoch != 0 {
		path, follow = s.consoles.keptPath(uid, req.Msg.Epoch), false
	}
	c, err := openConsole(path)
	if err != nil {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("host %s keeps no such console of guest %s", s.config.Name, uid))
	}
	defer func() { c.Close() }()
	offset := int64(req.Msg.Offset)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		kept := c.current(path) // before the read: if the file is complete now, the read returns all of it
		if offset, err = sendConsole(c, offset, stream); err != nil {
			return err
		}
		if !follow || !kept && !c.rolled(path) {
			return nil
		}
		if !kept {
			next, err := openConsole(path)
			if err != nil {
				return nil
			}
			c.Close()
			c = next
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func checkUID(uid string) error {
	if machine.ValidUID(uid) {
		return nil
	}
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("malformed guest uid %q", uid))
}

// sendConsole sends the console's present bytes from offset on, and returns the offset after them.
func sendConsole(c *consoleFile, offset int64, stream *connect.ServerStream[v1.ConsoleResponse]) (int64, error) {
	buf := make([]byte, 64<<10)
	for {
		n, skipped, err := c.ReadAt(buf, offset)
		if skipped > 0 { // a line replaces the last skipped bytes
			offset += skipped
			line := []byte(notKept(skipped))
			line = line[:min(len(line), int(skipped))]
			if err := stream.Send(&v1.ConsoleResponse{Data: line, Offset: uint64(offset - int64(len(line)))}); err != nil {
				return offset, err
			}
		}
		if n > 0 {
			if err := stream.Send(&v1.ConsoleResponse{Data: buf[:n], Offset: uint64(offset)}); err != nil {
				return offset, err
			}
			offset += int64(n)
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return offset, fmt.Errorf("read the console: %w", err)
		}
		return offset, nil
	}
}

// current reports whether the console's last file is still the one at path.
func (c *consoleFile) current(path string) bool {
	return c.is(path, c.files[len(c.files)-1])
}

// rolled reports whether virtlogd has renamed the console's last file and writes to another.
func (c *consoleFile) rolled(path string) bool {
	for _, name := range rolledOver(path) {
		if c.is(name, c.files[len(c.files)-1]) {
			return true
		}
	}
	return false
}

func (c *consoleFile) is(path string, file *os.File) bool {
	now, err := os.Stat(path)
	if err != nil {
		return false
	}
	opened, err := file.Stat()
	return err == nil && os.SameFile(now, opened)
}
