package agent

// template_files.go - templates on disk: <key>.save, beside it <key>.json with its description and <key>.zst, as other
// hosts fetch it.

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
	// Hypervisor is the version and the confinement of what saved it. A template that another version saved, or QEMU as
	// another user or under another security driver, may fail to be restored.
	Hypervisor string `json:"hypervisor"`
	// Packed is the template as other hosts fetch it; nil: not packed.
	Packed *packedTemplate `json:"packed,omitempty"`
	// Group is the trust group in which it was fetched; empty: it was made here.
	Group    string `json:"group,omitempty"`
	MakingMS uint32 `json:"making_ms,omitempty"` // how long it took to make, on the host that made it
}

type packedTemplate struct {
	Digest string `json:"digest"`
	Size   uint64 `json:"size"` // bytes
}

func (t *templates) path(key string) string { return filepath.Join(t.dir, key+".save") }

func (t *templates) infoPath(key string) string { return filepath.Join(t.dir, key+".json") }

// packedPath is where the packed template is: a link to the blob.
func (t *templates) packedPath(key string) string { return filepath.Join(t.dir, key+".zst") }

// info is a template's description; nil: there is none.
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

// describe writes the description of a template that has just come to be, by which it counts as whole.
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

// remove removes a template and all that belongs to it.
func (t *templates) remove(key string) {
	for _, path := range []string{t.infoPath(key), t.path(key), t.packedPath(key)} {
		os.Remove(path)
	}
}

// whole tells whether a template is there and as it was when it was made or fetched.
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
