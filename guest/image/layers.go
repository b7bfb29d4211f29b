package image

// layers.go - flattens an image's layers as specified in "Image Layer Filesystem Changeset" of the OCI image
// specification.

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	ociv1 "github.com/google/go-containerregistry/pkg/v1"
)

// The names with which a layer removes files of lower layers.
const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
)

// layerPlan says which parts of a layer are in the flattened tree.
type layerPlan struct {
	layer   ociv1.Layer
	at      map[string]int    // position of each name in the layer; the last entry of a name counts
	entries map[string]bool   // names that are in the flattened tree
	links   map[string]string // target of each hard link in entries
	sources map[string]string // for a target that upper layers hide: the link that gets its content
}

// flattener processes layers from the top down and records what the upper layers hide.
type flattener struct {
	kinds  map[string]byte        // tar's type of each name in the flattened tree
	target map[string]string      // targets of its links
	dirs   map[string]*tar.Header // its directories
	hidden map[string]bool        // names removed with everything below
	opaque map[string]bool        // directories whose lower content is hidden
	plans  []*layerPlan           // top layer first
}

// planLayers reads all layers, verifies them against the hashes in the image's configuration, and decides which entries
// of each layer are in the flattened tree.
func planLayers(image ociv1.Image, read func(io.Reader) io.Reader) (*flattener, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	f := &flattener{kinds: map[string]byte{}, target: map[string]string{}, dirs: map[string]*tar.Header{},
		hidden: map[string]bool{}, opaque: map[string]bool{}}
	for i, layer := range slices.Backward(layers) {
		headers, err := layerHeaders(layer, read)
		if err != nil {
			return nil, fmt.Errorf("layer %d of %d: %w", i+1, len(layers), err)
		}
		f.add(layer, headers)
	}
	return f, nil
}

// layerHeaders reads a complete layer and verifies its hash.
func layerHeaders(layer ociv1.Layer, read func(io.Reader) io.Reader) ([]*tar.Header, error) {
	want, err := layer.DiffID()
	if err != nil {
		return nil, err
	}
	content, err := layer.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	hash := sha256.New()
	stream := io.TeeReader(read(content), hash)
	var headers []*tar.Header
	for reader := tar.NewReader(stream); ; {
		header, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if header.Name, err = cleanEntry(header.Name); err != nil {
			return nil, err
		}
		headers = append(headers, header)
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return nil, err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want.Hex {
		return nil, fmt.Errorf("its content has the hash %s, not %s as the configuration says", got, want.Hex)
	}
	return headers, nil
}

// cleanEntry makes a tar entry's name relative and refuses one that leads out of the root.
func cleanEntry(name string) (string, error) {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", fmt.Errorf("entry %q leads out of the root", name)
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

// add decides which entries of the next lower layer are in the flattened tree.
func (f *flattener) add(layer ociv1.Layer, headers []*tar.Header) {
	plan := &layerPlan{layer: layer, at: map[string]int{}, entries: map[string]bool{}, links: map[string]string{}, sources: map[string]string{}}
	kinds, seen := map[string]byte{}, map[string]*tar.Header{}
	var hidden, opaque []string
	for n, header := range headers {
		plan.at[header.Name] = n
		dir, base := path.Split(header.Name)
		switch {
		case header.Name == "", header.Typeflag == tar.TypeXGlobalHeader:
		case base == opaqueMarker:
			opaque = append(opaque, path.Clean(dir))
		case strings.HasPrefix(base, whiteoutPrefix):
			hidden = append(hidden, path.Join(dir, strings.TrimPrefix(base, whiteoutPrefix)))
		case !f.covers(header.Name):
			kinds[header.Name], seen[header.Name] = header.Typeflag, header
		}
	}
	for name, kind := range kinds {
		f.kinds[name], f.target[name] = kind, seen[name].Linkname
		if kind == tar.TypeDir {
			f.dirs[name] = plainHeader(seen[name], name)
		}
		plan.entries[name] = true
	}
	for _, header := range headers {
		if to, err := cleanEntry(header.Linkname); err == nil && header.Typeflag == tar.TypeLink && kinds[header.Name] == tar.TypeLink {
			plan.links[header.Name] = to
			if !plan.entries[to] && plan.sources[to] == "" {
				plan.sources[to] = header.Name
			}
		}
	}
	for _, name := range hidden {
		f.hidden[name] = true
	}
	for _, name := range opaque {
		f.opaque[name] = true
	}
	f.plans = append(f.plans, plan)
}

// covers reports whether upper layers hide a name.
func (f *flattener) covers(name string) bool {
	if _, there := f.kinds[name]; there || f.hidden[name] {
		return true
	}
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		kind, there := f.kinds[dir]
		if f.hidden[dir] || f.opaque[dir] || there && kind != tar.TypeDir {
			return true
		}
		if dir == "." {
			return false
		}
	}
}

// replace removes a name from the flattened tree, and everything below it unless the new entry is a directory.
func (f *flattener) replace(name string, kind byte) {
	for _, plan := range f.plans {
		for entry := range plan.entries {
			if entry != name && !(kind != tar.TypeDir && strings.HasPrefix(entry, name+"/")) {
				continue
			}
			delete(plan.entries, entry)
			for link, to := range plan.links {
				if to == entry && plan.entries[link] && plan.sources[to] == "" {
					plan.sources[to] = link
				}
			}
		}
	}
	f.kinds[name] = kind
	delete(f.dirs, name)
}

// resolve follows the symbolic links of the flattened tree in the directories of name, but not name itself.
func (f *flattener) resolve(name string) (string, error) {
	done, rest := "", strings.Split(name, "/")
	for followed := 0; len(rest) > 1; {
		next := path.Join(done, rest[0])
		rest = rest[1:]
		switch f.kinds[next] {
		case tar.TypeSymlink:
			if followed++; followed > 40 {
				return "", fmt.Errorf("%s: too many symbolic links", name)
			}
			to := f.target[next]
			if !path.IsAbs(to) {
				to = path.Join("/", done, to)
			}
			done, rest = "", append(strings.Split(strings.TrimPrefix(path.Clean(to), "/"), "/"), rest...)
		case tar.TypeDir, 0:
			done = next
		default:
			return "", fmt.Errorf("%s: %s is no folder", name, next)
		}
	}
	return path.Join(done, rest[0]), nil
}

// errLink means that the target of a hard link does not exist.
var errLink = errors.New("hard link without its file")

// writeDirs writes all directories, outer ones first, including those for which no layer has an entry.
func (f *flattener) writeDirs(out *tar.Writer) error {
	dirs := maps.Clone(f.dirs)
	for name := range f.kinds {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, there := f.kinds[dir]; !there {
				dirs[dir] = &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		if err := out.WriteHeader(dirs[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// write writes the flattened tree without its directories. Hard links come last, because their targets may be anywhere.
// watch may return a writer, which also receives the content of a regular file.
func (f *flattener) write(out *tar.Writer, watch func(name string) io.WriteCloser) error {
	var links []*tar.Header
	for i, plan := range f.plans {
		more, err := plan.write(out, watch)
		if err != nil {
			return fmt.Errorf("layer %d of %d: %w", len(f.plans)-i, len(f.plans), err)
		}
		links = append(links, more...)
	}
	for _, link := range links {
		if kind, there := f.kinds[link.Linkname]; !there || kind == tar.TypeDir {
			return fmt.Errorf("%s: %w (%s)", link.Name, errLink, link.Linkname)
		}
		if err := out.WriteHeader(link); err != nil {
			return fmt.Errorf("%s: %w", link.Name, err)
		}
	}
	return nil
}

// write writes the visible entries of a layer and returns its hard links.
func (p *layerPlan) write(out *tar.Writer, watch func(name string) io.WriteCloser) ([]*tar.Header, error) {
	content, err := p.layer.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	var links []*tar.Header
	reader := tar.NewReader(content)
	for n := 0; ; n++ {
		header, err := reader.Next()
		if err == io.EOF {
			return links, nil
		}
		if err != nil {
			return nil, err
		}
		name, err := cleanEntry(header.Name)
		if err != nil {
			return nil, err
		}
		if p.at[name] != n {
			continue
		}
		if p.entries[name] && header.Typeflag == tar.TypeDir {
			continue // writeDirs has written it
		}
		if !p.entries[name] {
			if name = p.sources[name]; name == "" {
				continue
			}
			// The entry is hidden, but a link to it is visible and gets its content.
		} else if to, link := p.links[name]; link {
			if source := p.sources[to]; source != "" {
				to = source
			}
			if to != name {
				links = append(links, &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Format: tar.FormatPAX})
			}
			continue
		}
		if err := copyEntry(out, plainHeader(header, name), reader, watch); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
}

// copyEntry copies one entry with its content.
func copyEntry(out *tar.Writer, header *tar.Header, content io.Reader, watch func(name string) io.WriteCloser) error {
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	watcher := watch(header.Name)
	if watcher == nil {
		_, err := io.Copy(out, content)
		return err
	}
	_, err := io.Copy(io.MultiWriter(out, watcher), content)
	return errors.Join(err, watcher.Close())
}

// plainHeader returns a header with only the attributes that a file system stores, in a format that allows any name.
func plainHeader(from *tar.Header, name string) *tar.Header {
	header := &tar.Header{
		Typeflag: from.Typeflag, Name: name, Mode: from.Mode & 0o7777, Uid: from.Uid, Gid: from.Gid,
		ModTime: from.ModTime.Truncate(time.Second), Format: tar.FormatPAX,
	}
	switch from.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		header.Typeflag, header.Size = tar.TypeReg, from.Size
	case tar.TypeSymlink:
		header.Linkname = from.Linkname
	case tar.TypeDir:
		header.Name += "/"
	case tar.TypeChar, tar.TypeBlock:
		header.Devmajor, header.Devminor = from.Devmajor, from.Devminor
	}
	for record, value := range from.PAXRecords {
		if strings.HasPrefix(record, "SCHILY.xattr.") {
			if header.PAXRecords == nil {
				header.PAXRecords = map[string]string{}
			}
			header.PAXRecords[record] = value
		}
	}
	return header
}
