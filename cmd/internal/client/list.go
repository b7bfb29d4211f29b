package client

import (
	"context"

	"connectrpc.com/connect"
)

// List makes a call that lists objects and returns the objects.
func List[Q, R, T any](ctx context.Context, call func(context.Context, *connect.Request[Q]) (*connect.Response[R], error),
	request *Q, objects func(*R) []T) ([]T, error) {
	response, err := call(ctx, connect.NewRequest(request))
	if err != nil {
		return nil, err
	}
	return objects(response.Msg), nil
}
