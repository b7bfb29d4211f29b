// Package client calls a manager for the command line. It reads the client config, tries each manager, waits during a
// manager's restart, and turns errors into sentences that name the next step.
package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/internal/protocol"
)

// base is the URL of requests. The transport finds the address.
const base = "https://watari-manager"

// Client calls the managers of one config. Several goroutines may use it.
type Client struct {
	watariv1connect.ControlServiceClient
	join      watariv1connect.JoinServiceClient
	http      *http.Client
	transport *transport
}

// Open returns a client. It does not connect.
func Open(config *Config) (*Client, error) {
	options, err := ca.ClientTLS([]byte(config.CA), []byte(config.Certificate), []byte(config.Key))
	if err != nil {
		return nil, fmt.Errorf("use the client config: %w", err)
	}
	transport, err := newTransport(config.Managers, options)
	if err != nil {
		return nil, err
	}
	client := &Client{http: &http.Client{Transport: transport}, transport: transport}
	next := connect.WithInterceptors(nextManager(transport))
	client.ControlServiceClient = watariv1connect.NewControlServiceClient(client.http, base, next)
	client.join = watariv1connect.NewJoinServiceClient(client.http, base, next)
	return client, nil
}

// Advertised returns the URL that the leading manager advertises, for commands to be typed on other machines. If the manager
// advertises none, the result is "URL".
func (c *Client) Advertised(ctx context.Context) string {
	response, err := c.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
	if err != nil || !strings.HasPrefix(response.Msg.GetLeader(), "https://") {
		return "URL"
	}
	return response.Msg.Leader
}

// OpenJoin returns a client with a token instead of a certificate, for getting a certificate.
func OpenJoin(managers []string, token ca.Token) (watariv1connect.JoinServiceClient, error) {
	transport, err := newTransport(managers, ca.JoinTLS(token))
	if err != nil {
		return nil, err
	}
	return watariv1connect.NewJoinServiceClient(&http.Client{Transport: transport}, base, connect.WithInterceptors(nextManager(transport))), nil
}

// renewTimeout limits the renewal of a certificate. The waiting command could do without it.
const renewTimeout = 5 * time.Second

// Renew returns a copy of the client's config with a new certificate for the same key. The present certificate must be
// valid.
func (c *Client) Renew(ctx context.Context, config *Config) (*Config, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	request, err := ca.NewCSR([]byte(config.Key))
	if err != nil {
		return nil, err
	}
	answer, err := c.join.Join(ctx, connect.NewRequest(&v1.JoinRequest{Request: request}))
	if err != nil {
		return nil, fmt.Errorf("ask for a new certificate: %w", err)
	}
	renewed := *config
	renewed.Certificate = string(answer.Msg.Certificate)
	if _, err := Open(&renewed); err != nil {
		return nil, fmt.Errorf("the manager's new certificate: %w", err)
	}
	return &renewed, nil
}

// HTTP returns the client for HTTP requests other than API calls: images' blobs.
func (c *Client) HTTP() *http.Client { return c.http }

// URL returns the URL of a path at the manager, for HTTP.
func (c *Client) URL(path string) string { return base + path }

// leaderOf returns the URL of the leading manager that an error names, or "".
func leaderOf(err error) string {
	if refused := (*connect.Error)(nil); errors.As(err, &refused) {
		return refused.Meta().Get(protocol.LeaderHeader)
	}
	return ""
}

// nextManager repeats a call with the next manager if no manager, or none that leads, has answered. If the one that answered names
// the leader, the leader is next.
func nextManager(transport *transport) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			for attempt := 1; ; attempt++ {
				response, err := next(ctx, request)
				if connect.CodeOf(err) != connect.CodeUnavailable || err == nil {
					return response, err
				}
				managers := transport.rotate(leaderOf(err))
				if unreachable := (*Unreachable)(nil); errors.As(err, &unreachable) || attempt >= managers {
					return response, err // all managers were tried
				}
			}
		}
	}
}
