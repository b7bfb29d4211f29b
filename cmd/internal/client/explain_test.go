package client

import (
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
)

func TestNextStepWhereNoManagerAnswers(t *testing.T) {
	for url, step := range map[string]string{
		"https://127.0.0.1:7070": "refused; start one with `sudo watari up`",
		"https://localhost:7070": "refused; start one with `sudo watari up`",
		"https://192.0.2.1:7070": "refused; check the network, and on the manager's machine start it with `sudo watari up`",
	} {
		err := connect.NewError(connect.CodeUnavailable, &Unreachable{Managers: []string{url}, Reasons: []error{syscall.ECONNREFUSED}})
		if text := Explain(err).Error(); !strings.HasSuffix(text, step) {
			t.Errorf("%s: %s", url, text)
		}
	}
}
