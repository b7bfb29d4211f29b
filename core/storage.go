package core

// storage.go - folders of outside file servers that clusters mount, and who may mount them.

import (
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/internal/mounts"
	"watari/internal/printable"
)

const (
	// firstGatewayPort is the first of the ports at guests' gateway that lead to storage. There are maxStorages of them.
	firstGatewayPort = 7200
	maxStorages      = 256
	// nfsPort is the usual port of NFS 4.
	nfsPort = 2049
	// maxMounts bounds the mounts of a cluster.
	maxMounts = 16
	maxPath   = 1000
)

// serverRule matches names and addresses of servers.
var serverRule = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

// systemFolders are folders of a guest's root in which nothing is mounted.
var systemFolders = []string{"bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin", "sys", "usr", "var"}

// covers reports whether a storage lets a user mount a folder.
func covers(s *v1.Storage, m *v1.Mount, user string) bool {
	below := s.Path == m.Path || strings.HasPrefix(m.Path, strings.TrimSuffix(s.Path, "/")+"/")
	return below && strings.EqualFold(s.Server, m.Server) && (m.ReadOnly || !s.ReadOnly) && MayMount(s, user)
}

// MayMount reports whether a user may mount a storage.
func MayMount(s *v1.Storage, user string) bool {
	return len(s.Users) == 0 || slices.Contains(s.Users, user)
}

// storageFor returns the storage that lets a user mount a folder; nil: none does. Of several it is the oldest: a guest would mount the
// folder anew if storage that is allowed later came before it.
func (o *Objects) storageFor(m *v1.Mount, user string) (oldest *v1.Storage) {
	for _, name := range sortedKeys(o.Storages) {
		s := o.Storages[name]
		if covers(s, m, user) && (oldest == nil || s.Meta.Created.AsTime().Before(oldest.Meta.Created.AsTime())) {
			oldest = s
		}
	}
	return oldest
}

// mounts returns what the guests of a cluster mount: what its specification asks for, as far as it is allowed now.
func (o *Objects) mounts(c *v1.Cluster) (list []*v1.StorageMount) {
	for _, m := range c.GetSpec().GetMounts() {
		if s := o.storageFor(m, c.Meta.Owner); s != nil {
			list = append(list, &v1.StorageMount{Server: s.Server, Port: s.Port, Path: m.Path, At: m.At, ReadOnly: m.ReadOnly, GatewayPort: s.GatewayPort})
		}
	}
	return list
}

// checkServer refuses a text that names no server.
func checkServer(server string) error {
	if _, err := netip.ParseAddr(server); err != nil && !serverRule.MatchString(server) {
		return invalid("%q cannot be a server: give a name such as nfs.lab, or an IP address", server)
	}
	return nil
}

// checkPath refuses a path that is not absolute or not in its shortest form.
func checkPath(what, p string) error {
	if !strings.HasPrefix(p, "/") || path.Clean(p) != p || len(p) > maxPath || printable.Line(p, maxPath) != p {
		return invalid("%q cannot be %s: give an absolute path without .., such as /data", p, what)
	}
	return nil
}

// checkMounts refuses mounts that make no sense, and sorts them.
func checkMounts(spec *v1.ClusterSpec) error {
	if len(spec.Mounts) > maxMounts {
		return invalid("%d mounts: a cluster has %d at most", len(spec.Mounts), maxMounts)
	}
	slices.SortFunc(spec.Mounts, func(a, b *v1.Mount) int { return strings.Compare(a.GetAt(), b.GetAt()) })
	for i, m := range spec.Mounts {
		if err := checkServer(m.GetServer()); err != nil {
			return err
		}
		if err := checkPath("a folder of server "+m.Server, m.Path); err != nil {
			return err
		}
		if err := checkPath("where guests mount "+mounts.Source(m.Server, m.Path), m.At); err != nil {
			return err
		}
		first, _, _ := strings.Cut(m.At[1:], "/")
		if first == "" || slices.Contains(systemFolders, first) {
			return invalid("%s cannot be mounted at %s: the guest needs that folder itself; use one of its own, such as /data", mounts.Source(m.Server, m.Path), m.At)
		}
		for _, other := range spec.Mounts[:i] {
			if other.At == m.At || strings.HasPrefix(m.At, other.At+"/") {
				return invalid("two mounts at %s and %s: the first would hide the second", other.At, m.At)
			}
		}
	}
	return nil
}

// allowedMounts refuses mounts that no administrator has allowed, or that guests could not reach from some site.
func (a *Admission) allowedMounts(spec *v1.ClusterSpec) error {
	for _, m := range spec.Mounts {
		s := a.storageFor(m, a.Caller.Name)
		if s == nil {
			return a.whyForbidden(m)
		}
		for _, site := range spec.Sites {
			if len(s.Sites) > 0 && !slices.Contains(s.Sites, site) {
				return precondition("%s is reached from %s, not from site %s", named(s), siteNames(s.Sites), site)
			}
		}
		if len(s.Sites) > 0 && len(spec.Sites) == 0 {
			return precondition("%s is reached from %s only; keep the guests there: --site %s", named(s), siteNames(s.Sites),
				strings.Join(s.Sites, " --site "))
		}
	}
	return nil
}

// whyForbidden says why a user may not mount a folder, without revealing storage that the user may not see.
func (a *Admission) whyForbidden(m *v1.Mount) error {
	writing := proto.CloneOf(m)
	writing.ReadOnly = true
	if s := a.storageFor(writing, a.Caller.Name); s != nil {
		return refuse(Denied, "%s may only be read: add :ro to --mount", named(s))
	}
	return refuse(Denied, "user %s may not mount %s; an administrator allows it with `watari storage allow`, and `watari storage list` shows what is allowed",
		a.Caller.Name, mounts.Source(m.Server, m.Path))
}

// named names a storage and its folder, for people.
func named(s *v1.Storage) string {
	return "storage " + s.Meta.Name + " (" + mounts.Source(s.Server, s.Path) + ")"
}

func siteNames(sites []string) string {
	if len(sites) == 1 {
		return "site " + sites[0]
	}
	return "sites " + strings.Join(sites, ", ")
}

// AllowStorage lets clusters mount a folder. If an equal storage exists, the change has no operations.
func (a *Admission) AllowStorage(asked *v1.Storage) (change Change, err error) {
	s := proto.CloneOf(asked)
	name := s.GetMeta().GetName()
	if err := CheckName("storage", name); err != nil {
		return change, err
	}
	if err := checkServer(s.Server); err != nil {
		return change, err
	}
	if err := checkPath("a folder of server "+s.Server, s.Path); err != nil {
		return change, err
	}
	if s.Port == 0 {
		s.Port = nfsPort
	}
	if s.Port > 65535 {
		return change, invalid("port %d: a TCP port is at most 65535", s.Port)
	}
	known := sites(a.Objects)
	for _, site := range s.Sites {
		if !known[site] {
			return change, Missing("site", site, known)
		}
	}
	for _, user := range s.Users {
		if a.Users[user] == nil {
			return change, Missing("user", user, a.Users)
		}
	}
	for _, list := range []*[]string{&s.Users, &s.Sites} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	s.Meta, s.GatewayPort = &v1.Meta{Name: name, Owner: a.Caller.Name, OwnerUid: a.Caller.UID}, 0
	if have := a.Storages[name]; have != nil {
		same := proto.CloneOf(have)
		same.Meta, same.GatewayPort = s.Meta, 0
		if !proto.Equal(same, s) {
			return change, refuse(Exists, "there is a storage %s, and it differs (%s); `watari storage forbid %s` removes it", name, mounts.Source(have.Server, have.Path), name)
		}
		return change, nil
	}
	if s.GatewayPort = a.freeGatewayPort(); s.GatewayPort == 0 {
		return change, refuse(Exhausted, "there are %d storages already, as many as there can be", maxStorages)
	}
	change.write(Create, s)
	a.audited(&change, "storage", name, "allowed: %s", mounts.Source(s.Server, s.Path))
	return change, nil
}

// freeGatewayPort returns the first port that no storage has; 0: there is none.
func (a *Admission) freeGatewayPort() uint32 {
	taken := map[uint32]bool{}
	for _, s := range a.Storages {
		taken[s.GatewayPort] = true
	}
	for port := uint32(firstGatewayPort); port < firstGatewayPort+maxStorages; port++ {
		if !taken[port] {
			return port
		}
	}
	return 0
}

// ForbidStorage ends the permission to mount a folder. With force, clusters that mount the folder lose it.
func (a *Admission) ForbidStorage(name string, force bool) (change Change, err error) {
	s := a.Storages[name]
	if s == nil {
		return change, Missing("storage", name, a.Storages)
	}
	var users []string
	for _, cluster := range sortedKeys(a.Clusters) {
		c := a.Clusters[cluster]
		if slices.ContainsFunc(c.Spec.GetMounts(), func(m *v1.Mount) bool { return a.storageFor(m, c.Meta.Owner) == s }) {
			users = append(users, cluster)
		}
	}
	if len(users) > 0 && !force {
		return change, precondition("storage %s is mounted in %s; delete the clusters first, or take it from them with --force: their programs then fail when they use it",
			name, strings.Join(users, ", "))
	}
	change.write(Delete, s)
	a.audited(&change, "storage", name, "forbidden: %s", mounts.Source(s.Server, s.Path))
	return change, nil
}
