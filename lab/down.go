// Taking a lab down. Its parts are found by name, so this works even if the lab's state is lost or half written.

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// Down removes everything of the lab, reports each step to Progress, and returns when all of it is gone. It also removes the
// remains of a crash, and does nothing if there is nothing to remove.
func (l *Lab) Down(ctx context.Context) error { return Down(ctx, l.Name(), l.progress) }

// Down removes everything of the lab of that name.
func Down(ctx context.Context, name string, progress func(line string)) error {
	if err := checkName(name); err != nil {
		return err
	}
	l := at(name)
	if progress != nil {
		l.progress = progress
	}
	if !l.leftovers() {
		return nil
	}
	unlock, err := lockDirectory(ctx, l.dir, l.progress)
	if err != nil {
		return err
	}
	defer unlock()
	for _, step := range []func(context.Context) error{l.endProcesses, l.removeRootLink, l.removeShares, l.removeNamespaces, l.forbidUserfaults, l.removeFiles} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("take down lab %s: %w", name, err)
		}
	}
	return nil
}

// leftovers reports whether anything of the lab exists.
func (l *Lab) leftovers() bool {
	if _, err := os.Lstat(l.dir); err == nil {
		return true
	}
	if _, err := os.Lstat(l.run); err == nil {
		return true
	}
	_, err := netlink.LinkByName(rootLinkName(l.Name()))
	return err == nil || len(findHelpers(helperArgs(verbHostInit, l.Name(), ""))) > 0 ||
		len(findHelpers(helperArgs(verbWANLink, l.Name(), ""))) > 0
}

// endProcesses ends the hosts, the WAN's link process, and every other process in the lab's network namespaces.
func (l *Lab) endProcesses(ctx context.Context) error {
	inodes := map[uint64]bool{}
	hosts := findHelpers(helperArgs(verbHostInit, l.Name(), ""))
	for _, pid := range hosts {
		inodes[namespaceOf(pid, "net")] = true
	}
	held, _ := filepath.Glob(l.namespacePath("*"))
	for _, path := range held {
		if heldNamespace(path) {
			inodes[inode(path)] = true
		}
	}
	delete(inodes, inode(ownNamespace))
	delete(inodes, 0)
	if err := kill(ctx, hosts...); err != nil {
		return err
	}
	if len(hosts) > 0 {
		l.say("ended %d hosts", len(hosts))
	}
	links := findHelpers(helperArgs(verbWANLink, l.Name(), ""))
	if err := kill(ctx, links...); err != nil {
		return err
	}
	if len(links) > 0 {
		l.say("ended the WAN's link")
	}
	others := inNamespaces(inodes)
	if err := kill(ctx, others...); err != nil {
		return err
	}
	if len(others) > 0 {
		l.say("ended %d processes in the lab's networks", len(others))
	}
	return nil
}

func (l *Lab) removeRootLink(context.Context) error {
	name := rootLinkName(l.Name())
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	l.say("removed link %s", name)
	return nil
}

// removeNamespaces removes the links inside each namespace first. If the mounts of another process keep the namespace
// alive, at least it is empty.
func (l *Lab) removeNamespaces(context.Context) error {
	held, err := filepath.Glob(l.namespacePath("*"))
	if err != nil {
		return err
	}
	for _, path := range held {
		if heldNamespace(path) {
			if err := removeLinks(path); err != nil {
				return err
			}
		}
		if err := releaseNamespace(path); err != nil {
			return err
		}
	}
	if len(held) > 0 {
		l.say("removed %d network namespaces", len(held))
	}
	return nil
}

func removeLinks(namespace string) error {
	h, err := handle(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("list links in %s: %w", namespace, err)
	}
	for _, link := range links {
		switch link.Type() {
		case "veth", "bridge", "tuntap":
			_ = h.LinkDel(link) // deleting its peer may have deleted it already
		}
	}
	return nil
}

func (l *Lab) removeFiles(context.Context) error {
	for _, dir := range []string{l.run, l.dir} {
		if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		l.say("removed %s", dir)
		_ = os.Remove(filepath.Dir(dir)) // if this was the last lab
	}
	return nil
}
