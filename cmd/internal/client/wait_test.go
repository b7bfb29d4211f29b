package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
)

// A run that prints nothing for an hour is followed on when its connection breaks.
func TestAQuietConnectionThatBreaksIsMadeAgain(t *testing.T) {
	for name, speaks := range map[string]bool{"after one message": true, "after none": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				transport, err := newTransport([]string{"https://m:1"}, nil)
				if err != nil {
					t.Fatal(err)
				}
				err = (&Client{transport: transport}).Patiently(t.Context(), nil, func(alive func()) error {
					if attempts++; attempts > 1 {
						return nil
					}
					if speaks {
						alive()
					}
					time.Sleep(time.Hour)
					return connect.NewError(connect.CodeUnavailable, errors.New("the connection broke"))
				})
				if err != nil || attempts != 2 {
					t.Errorf("%d attempts: %v", attempts, err)
				}
			})
		})
	}
}
