package api

import (
	"path/filepath"
	"testing"

	"watari/manager/store"
)

// openStore opens an empty store that the test closes when it ends.
func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Dir: filepath.Join(t.TempDir(), "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
