package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
)

// chunk is the size of one message of a file transfer, in bytes.
const chunk = 256 << 10

var errStreamEnded = errors.New("the manager ended the stream")

// Place is a file or directory of a guest or of a run. A relative path of a run starts at the run's directory.
type Place struct {
	Guest, Run string // exactly one is set
	Path       string
	User       string // owner of what is put; empty: root, or the run's user
}

func (p Place) String() string { return p.Guest + p.Run + ":" + p.Path }

// Put copies a local file into the guests and replaces an existing file. progress is called with the bytes sent, notice as by Patiently.
func (c *Client) Put(ctx context.Context, local string, to Place, notice func(error), progress func(sent, size int64)) error {
	return c.Patiently(ctx, notice, func(func()) error {
		file, err := os.Open(local)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", local)
		}
		return c.putOnce(ctx, file, info, to, func(sent int64) {
			if progress != nil {
				progress(sent, info.Size())
			}
		})
	})
}

func (c *Client) putOnce(ctx context.Context, file io.Reader, info os.FileInfo, to Place, sent func(int64)) error {
	stream := c.PutFile(ctx)
	buffer := make([]byte, chunk)
	var total int64
	for first, last := true, false; !last; first = false {
		n, err := io.ReadFull(file, buffer)
		last = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return err
		}
		message := &v1.ControlPutFileRequest{File: &v1.PutFileRequest{Data: buffer[:n], Last: last}}
		if first {
			message.Guest, message.Run = to.Guest, to.Run
			message.File.Path, message.File.Mode, message.File.User = to.Path, uint32(info.Mode().Perm()), to.User
		}
		if err := stream.Send(message); err != nil {
			break // the response has the reason
		}
		total += int64(n)
		sent(total)
	}
	response, err := stream.CloseAndReceive()
	if err == nil && int64(response.Msg.Size) != total {
		return fmt.Errorf("%d of %d bytes arrived", response.Msg.Size, total)
	}
	return err
}

// Get copies a file from the guests to a local path. An existing file is replaced only when the copy is complete; a symbolic link stays,
// and what it points to is replaced. What is no file, such as a device or a named pipe, is written to. After a broken connection, Get
// continues where it ended.
func (c *Client) Get(ctx context.Context, from Place, local string, notice func(error), progress func(got, size int64)) error {
	info, err := os.Stat(local)
	if err == nil && info.IsDir() {
		local = filepath.Join(local, filepath.Base(from.Path))
		info, err = os.Stat(local)
	}
	if err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory", local)
	}
	if err == nil && !info.Mode().IsRegular() {
		return c.getInto(ctx, from, local, notice, progress)
	}
	if _, err := os.Lstat(local); err == nil {
		if local, err = filepath.EvalSymlinks(local); err != nil {
			return err // a link to nothing
		}
	}
	file, err := os.CreateTemp(filepath.Dir(local), "."+filepath.Base(local)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	mode, err := c.readAnew(ctx, from, file, notice, progress)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Chmod(mode), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), local)
}

// getInto writes a file of the guests to a device, a named pipe or the like. The end of ctx ends it even if nobody reads from the pipe.
func (c *Client) getInto(ctx context.Context, from Place, local string, notice func(error), progress func(got, size int64)) error {
	var file *os.File
	opened := make(chan error, 1)
	go func() {
		var err error
		file, err = os.OpenFile(local, os.O_WRONLY, 0)
		opened <- err
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-opened:
		if err != nil {
			return err
		}
	}
	defer file.Close()
	defer context.AfterFunc(ctx, func() { file.Close() })() // ends a write that nobody reads
	_, err := c.Read(ctx, from, file, notice, progress)
	return err
}

// mostBegun is how often a file is read from its beginning because it was replaced meanwhile.
const mostBegun = 5

// readAnew reads a file of the guests into another one, from the beginning if it is replaced meanwhile.
func (c *Client) readAnew(ctx context.Context, from Place, to *os.File, notice func(error), progress func(got, size int64)) (mode os.FileMode, err error) {
	for range mostBegun {
		if mode, err = c.Read(ctx, from, to, notice, progress); connect.CodeOf(err) != connect.CodeAborted || err == nil {
			return mode, err
		}
		if _, failed := to.Seek(0, io.SeekStart); failed != nil || to.Truncate(0) != nil {
			return mode, err
		}
	}
	return mode, err
}

// Read writes a file of the guests to w and returns its permission bits. If the file is replaced while it is read, the error is ABORTED.
func (c *Client) Read(ctx context.Context, from Place, w io.Writer, notice func(error), progress func(got, size int64)) (os.FileMode, error) {
	var got, size uint64
	version := ""
	mode := os.FileMode(0o644)
	err := c.Patiently(ctx, notice, func(alive func()) error {
		stream, err := c.GetFile(ctx, connect.NewRequest(&v1.ControlGetFileRequest{
			Guest: from.Guest, Run: from.Run, Path: from.Path, Offset: got, Version: version}))
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			alive()
			part := stream.Msg().GetFile()
			version = cmp.Or(part.GetVersion(), version)
			if part.GetSize() > 0 {
				size = part.GetSize()
			}
			if part.GetMode() != 0 {
				mode = os.FileMode(part.GetMode()).Perm()
			}
			n, err := w.Write(part.GetData())
			got += uint64(n)
			if err != nil {
				return err
			}
			if progress != nil {
				progress(int64(got), int64(size))
			}
		}
		if err := stream.Err(); err != nil {
			return err
		}
		if got < size {
			return connect.NewError(connect.CodeUnavailable, errStreamEnded)
		}
		return nil
	})
	return mode, err
}
