// links.go looks up interfaces, each only once per cache.
package overlay

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// linkCache caches names and indexes of interfaces while routes are set. It must not live longer: the kernel may reuse
// an index for another interface.
type linkCache struct {
	handle  *netlink.Handle
	byName  map[string]int
	byIndex map[int]string
}

func newLinkCache(handle *netlink.Handle, known lan) *linkCache {
	return &linkCache{handle: handle, byName: map[string]int{known.name: known.index}, byIndex: map[int]string{known.index: known.name}}
}

func (c *linkCache) indexOf(name string) (int, error) {
	if index, ok := c.byName[name]; ok {
		return index, nil
	}
	link, err := c.handle.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, err)
	}
	c.add(link)
	return link.Attrs().Index, nil
}

// nameOf returns "" for an interface that does not exist.
func (c *linkCache) nameOf(index int) string {
	if name, ok := c.byIndex[index]; ok || index == 0 {
		return name
	}
	link, err := c.handle.LinkByIndex(index)
	if err != nil {
		return ""
	}
	c.add(link)
	return link.Attrs().Name
}

func (c *linkCache) add(link netlink.Link) {
	c.byName[link.Attrs().Name], c.byIndex[link.Attrs().Index] = link.Attrs().Index, link.Attrs().Name
}
