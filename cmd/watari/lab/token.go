package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
)

// clientConfig is the client config file.
type clientConfig struct {
	Managers    []string `json:"manager"`
	CA          string   `json:"ca"`
	Certificate string   `json:"certificate"`
	Key         string   `json:"key"`
}

// tokenFromManager asks the manager of the client config for a host's join token.
func tokenFromManager(ctx context.Context, site string) (token, port string, err error) {
	config, err := readClientConfig()
	if err != nil {
		return "", "", fmt.Errorf("%w (start a manager with `watari up`, or pass --manager and --token, or --agent=false)", err)
	}
	address, err := url.Parse(config.Managers[0])
	if err != nil {
		return "", "", fmt.Errorf("the client config's manager: %w", err)
	}
	tls, err := ca.ClientTLS([]byte(config.CA), []byte(config.Certificate), []byte(config.Key))
	if err != nil {
		return "", "", fmt.Errorf("use the client config: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := watariv1connect.NewControlServiceClient(&http.Client{Transport: transport}, config.Managers[0])
	response, err := client.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Site: site}))
	if err != nil {
		return "", "", fmt.Errorf("ask manager %s: %w", config.Managers[0], err)
	}
	port = address.Port()
	if port == "" {
		port = "443"
	}
	return response.Msg.GetToken(), port, nil
}

func readClientConfig() (*clientConfig, error) {
	path := os.Getenv("WATARI_CONFIG")
	if path == "" {
		path = "/var/lib/watari/admin.json"
		if _, err := os.Stat(path); err != nil {
			folder, err := os.UserConfigDir()
			if err != nil {
				return nil, err
			}
			path = filepath.Join(folder, "watari", "config.json")
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the client config: %w", err)
	}
	var config clientConfig
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("read the client config %s: %w", path, err)
	}
	if len(config.Managers) == 0 {
		return nil, fmt.Errorf("the client config %s names no manager", path)
	}
	return &config, nil
}
