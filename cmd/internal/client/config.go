package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"watari/internal/durable"
)

// AdminConfig is the config that a manager started with `watari up` writes for this machine's administrator.
const AdminConfig = "/var/lib/watari/admin.json"

// Config says where managers are and who the caller is. It is a JSON file; see ConfigPath.
type Config struct {
	// Managers are base URLs, tried in turn: "https://192.0.2.1:7070".
	Managers []string `json:"manager"`
	// CA is the certificate of the managers' CA, PEM.
	CA string `json:"ca"`
	// Certificate and Key are the caller's, PEM.
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

// ErrNoConfig says that there is no client config where one was looked for.
var ErrNoConfig = errors.New("there is no client config")

// ConfigPath is where the config is read from when the command line names no other file: $WATARI_CONFIG, else
// AdminConfig for root where it exists, else ~/.config/watari/config.json.
func ConfigPath() (string, error) {
	if path := os.Getenv("WATARI_CONFIG"); path != "" {
		return path, nil
	}
	if os.Geteuid() == 0 {
		if _, err := os.Stat(AdminConfig); err == nil {
			return AdminConfig, nil
		}
	}
	return UserConfigPath()
}

// UserConfigPath is where `watari login` keeps a person's config.
func UserConfigPath() (string, error) {
	if path := os.Getenv("WATARI_CONFIG"); path != "" {
		return path, nil
	}
	folder, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the folder of configs: %w (set WATARI_CONFIG to a file's path)", err)
	}
	return filepath.Join(folder, "watari", "config.json"), nil
}

// Load reads a config. The error is ErrNoConfig where the file is missing.
func Load(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w at %s", ErrNoConfig, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the client config: %w", err)
	}
	config := &Config{}
	if err := json.Unmarshal(text, config); err != nil {
		return nil, fmt.Errorf("read the client config %s: %w", path, err)
	}
	if len(config.Managers) == 0 {
		return nil, fmt.Errorf("read the client config %s: it names no manager", path)
	}
	return config, nil
}

// Save writes a config so that only its owner can read it; one that was there keeps its owner.
func (c *Config) Save(path string) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("write the client config: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write the client config: %w", err)
	}
	if err := durable.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the client config: %w", err)
	}
	return nil
}
