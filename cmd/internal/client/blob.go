package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"connectrpc.com/connect"
)

// The headers of uploads, as in manager/blob.
const (
	offsetHeader = "Watari-Offset" // in responses: number of stored bytes
	sizeHeader   = "Watari-Size"   // of a PUT: size of the complete blob
)

// PutBlob uploads a blob to the manager. It continues where an earlier upload ended. progress is called with the number
// of stored bytes, notice as by Patiently.
func (c *Client) PutBlob(ctx context.Context, digest, path string, notice func(error), progress func(held, size int64)) error {
	return c.Patiently(ctx, notice, func(alive func()) error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		offset, whole, err := c.blobHeld(ctx, digest)
		if err != nil || whole {
			return err
		}
		if offset > 0 {
			alive()
		}
		if _, err := file.Seek(offset, io.SeekStart); err != nil {
			return err
		}
		body := &counted{r: file, sent: offset, count: func(sent int64) { progress(sent, info.Size()) }}
		return c.putRest(ctx, digest, offset, info.Size(), body)
	})
}

// blobHeld asks how many bytes of a blob the manager has.
func (c *Client) blobHeld(ctx context.Context, digest string) (offset int64, whole bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, c.URL("/blobs/"+digest), nil)
	if err != nil {
		return 0, false, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, false, connect.NewError(connect.CodeUnavailable, err)
	}
	response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return 0, true, nil
	case http.StatusNotFound:
		offset, _ = strconv.ParseInt(response.Header.Get(offsetHeader), 10, 64)
		return offset, false, nil
	}
	return 0, false, blobError(response, response.Status)
}

func (c *Client) putRest(ctx context.Context, digest string, offset, size int64, body io.Reader) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, fmt.Sprintf("%s?offset=%d", c.URL("/blobs/"+digest), offset), body)
	if err != nil {
		return err
	}
	request.ContentLength = size - offset
	request.Header.Set(sizeHeader, strconv.FormatInt(size, 10))
	response, err := c.http.Do(request)
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusCreated {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
	return blobError(response, strings.TrimSpace(string(text)))
}

// blobError converts a response to an error of a kind that calls have.
func blobError(response *http.Response, text string) error {
	code := connect.CodeInternal
	switch response.StatusCode {
	case http.StatusAccepted, http.StatusConflict, http.StatusServiceUnavailable:
		code = connect.CodeUnavailable // bytes are missing, or another upload is in progress: try again
	case http.StatusInsufficientStorage:
		code = connect.CodeResourceExhausted
	case http.StatusUnauthorized:
		code = connect.CodeUnauthenticated
	case http.StatusForbidden:
		code = connect.CodePermissionDenied
	case http.StatusUnprocessableEntity, http.StatusBadRequest:
		code = connect.CodeInvalidArgument
	}
	if text == "" {
		text = "the manager says " + response.Status
	}
	return connect.NewWireError(code, errors.New(text))
}

// counted is a reader that reports how much was read.
type counted struct {
	r     io.Reader
	sent  int64
	count func(int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.sent += int64(n)
	c.count(c.sent)
	return n, err
}
