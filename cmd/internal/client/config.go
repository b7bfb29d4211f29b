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

// AdminConfig is the path of the config that a manager started by `watari up` writes for this machine's administrator.
const AdminConfig = "/var/lib/watari/admin.json"

// Config has the managers' addresses and the caller's identity. It is a JSON file; see ConfigPath.
type Config struct {
	// Managers are base URLs, tried in turn: "https://192.0.2.1:7070".
	Managers []string `json:"manager"`
	// CA is the certificate of the managers' CA in PEM.
	CA string `json:"ca"`
	// Certificate and Key are the caller's, in PEM.
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

// ErrNoConfig means that there is no client config at the path.
var ErrNoConfig = errors.New("there is no client config")

// ConfigPath returns the path of the config if the command line names none: $WATARI_CONFIG, or else AdminConfig for
// root if it exists, or else ~/.config/watari/config.json.
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

// UserConfigPath returns the path at which `watari login` stores a user's config.
func UserConfigPath() (string, error) {
	if path := os.Getenv("WATARI_CONFIG"); path != "" {
		return path, nil
	}
	folder, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the directory of configs: %w (set WATARI_CONFIG to the path of a config)", err)
	}
	return filepath.Join(folder, "watari", "config.json"), nil
}

// Load reads a config. If the file does not exist, it returns ErrNoConfig.
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

// Save writes a config that only its owner can read. An existing file keeps its owner.
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
