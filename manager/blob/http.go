package blob

// http.go - blobs over HTTP: HEAD, GET (ranges) and PUT (resumable) of /blobs/<digest>.

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"
)

const (
	// OffsetHeader is a response header: the number of stored bytes of an upload.
	OffsetHeader = "Watari-Offset"
	// SizeHeader is a header of PUT: the size of the complete blob.
	SizeHeader = "Watari-Size"
)

// Handler serves the path pattern /blobs/{digest}. HEAD answers 200 with the length of a complete blob, or 404 with
// OffsetHeader. PUT ?offset=n appends the body. It answers 201 when the blob is complete; 202 with OffsetHeader if
// bytes are missing; 409 with OffsetHeader for a wrong offset or during another upload; 422 if the content does not
// have the hash (it is deleted); 507 if the disk is full, or room refuses. The caller checks the permission first.
// uploader returns the uploader of a request (see Put). room decides whether the uploader may have the blobs whose sizes it
// gets by hex digest (see Admit).
func (s *Store) Handler(uploader func(*http.Request) string, room func(r *http.Request, sizes map[string]int64) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum, err := ParseDigest(r.PathValue("digest"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		switch r.Method {
		case http.MethodGet, http.MethodHead:
			s.serve(w, r, uploader(r), sum)
		case http.MethodPut:
			s.receive(w, r, uploader(r), sum, func(sizes map[string]int64) error { return room(r, sizes) })
		default:
			w.Header().Set("Allow", "GET, HEAD, PUT")
			http.Error(w, "GET, HEAD or PUT", http.StatusMethodNotAllowed)
		}
	})
}

func (s *Store) serve(w http.ResponseWriter, r *http.Request, uploader, sum string) {
	f, err := os.Open(s.Path(sum))
	if err != nil {
		if held, whole, err := s.Stat(uploader, sum); err == nil && !whole && held > 0 {
			w.Header().Set(OffsetHeader, strconv.FormatInt(held, 10))
		}
		http.Error(w, "there is no blob sha256:"+sum, http.StatusNotFound)
		return
	}
	defer f.Close()
	w.Header().Set("ETag", `"`+sum+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, f)
}

func (s *Store) receive(w http.ResponseWriter, r *http.Request, uploader, sum string, room func(map[string]int64) error) {
	offset, err := number(r.URL.Query().Get("offset"), 0)
	if err != nil {
		http.Error(w, "offset: "+err.Error(), http.StatusBadRequest)
		return
	}
	size, err := number(r.Header.Get(SizeHeader), -1)
	if err != nil || size < 0 {
		http.Error(w, SizeHeader+" must say how many bytes the blob has", http.StatusBadRequest)
		return
	}
	if err := s.Admit(uploader, sum, size, room); err != nil {
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
		return
	}
	held, err := s.Put(uploader, sum, offset, size, r.Body)
	w.Header().Set(OffsetHeader, strconv.FormatInt(held, 10))
	var wrong *OffsetError
	switch {
	case err == nil && held < size:
		w.WriteHeader(http.StatusAccepted)
	case err == nil:
		w.WriteHeader(http.StatusCreated)
	case errors.As(err, &wrong), errors.Is(err, ErrBusy):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, ErrAltered):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case errors.Is(err, ErrFull):
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// number parses a non-negative decimal number; an empty text is the value of empty.
func number(text string, empty int64) (int64, error) {
	if text == "" {
		return empty, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a number of bytes", text)
	}
	return n, nil
}
