package agent

// template_files.go - templates on disk: <key>.save is the template, <key>.json its description, <key>.zst the packed
// template that other hosts fetch.

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// templateInfo is kept beside a template as <key>.json.
type templateInfo struct {
	Image string `json:"image"` // digest
	Size  int64  `json:"size"`  // of the file, bytes
	// Hypervisor has the version and the confinement of the hypervisor that saved the template. Another version, or
	// QEMU under another user or security driver, may fail to restore it.
	Hypervisor string `json:"hypervisor"`
	// Packed is the packed template, which other hosts fetch; nil: not packed.
	Packed *packedTemplate `json:"packed,omitempty"`
	// Group is the trust group from which the template was fetched; empty: this host made it.
	Group    string `json:"group,omitempty"`
	MakingMS uint32 `json:"making_ms,omitempty"` // how long its host took to make it
}

type packedTemplate struct {
	Digest string `json:"digest"`
	Size   uint64 `json:"size"` // bytes
}

func (t *templates) path(key string) string { return filepath.Join(t.dir, key+".save") }

func (t *templates) infoPath(key string) string { return filepath.Join(t.dir, key+".json") }

// packedPath is the path of the packed template, which is a link to the blob.
func (t *templates) packedPath(key string) string { return filepath.Join(t.dir, key+".zst") }

// info returns a template's description; nil: there is none.
func (t *templates) info(key string) *templateInfo {
	data, err := os.ReadFile(t.infoPath(key))
	if err != nil {
		return nil
	}
	info := &templateInfo{}
	if json.Unmarshal(data, info) != nil {
		return nil
	}
	return info
}

// describe writes the description of a new template. A template with a description counts as complete.
func (t *templates) describe(key string, info templateInfo) error {
	stat, err := os.Stat(t.path(key))
	if err != nil {
		return err
	}
	info.Size, info.Hypervisor = stat.Size(), t.version()
	return t.writeInfo(key, info)
}

func (t *templates) writeInfo(key string, info templateInfo) error {
	data, err := json.Marshal(info)
	if err != nil {
		return err
	}
	return writeFile(t.infoPath(key), data)
}

// remove removes a template with its description and its packed form.
func (t *templates) remove(key string) {
	for _, path := range []string{t.infoPath(key), t.path(key), t.packedPath(key)} {
		os.Remove(path)
	}
}

// whole reports whether a template exists and is unchanged since it was made or fetched.
func (t *templates) whole(key string) bool {
	info := t.info(key)
	if info == nil {
		return false
	}
	stat, err := os.Stat(t.path(key))
	return err == nil && stat.Size() == info.Size && info.Hypervisor == t.version()
}

func (t *templates) version() string {
	hypervisor, qemu, err := t.agent.hypervisor.Versions()
	if err != nil {
		return ""
	}
	c := t.agent.hypervisor.Confinement()
	return fmt.Sprintf("%s %s %s %s", hypervisor, qemu, c.GetUser(), c.GetSecurityModel())
}
