package session

// agents.go - one client of AgentService for all sessions.

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"watari/api/watariv1/watariv1connect"
	"watari/hostlink"
)

// maxReportBytes bounds a message of an agent.
const maxReportBytes = 16 << 20

// newAgents makes a client whose calls go to the session in their context. All hosts share it, because each client
// keeps the buffers of its largest messages.
func newAgents() watariv1connect.AgentServiceClient {
	// The host chooses what a report contains, and the host may be under an attacker's control. Reports are small and
	// frequent: compressing them costs a decompressor for each host and more time than compression saves.
	return watariv1connect.NewAgentServiceClient(dispatcher{}, hostlink.BaseURL, connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(maxReportBytes))
}

type sessionKey struct{}

func withSession(ctx context.Context, ses *session) context.Context {
	return context.WithValue(ctx, sessionKey{}, ses)
}

// dispatcher is a connect.HTTPClient for all sessions.
type dispatcher struct{}

func (dispatcher) Do(r *http.Request) (*http.Response, error) {
	return r.Context().Value(sessionKey{}).(*session).client.Do(r)
}
