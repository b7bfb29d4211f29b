// The disk that carries a machine's identity: a header of one block, then a tar archive of files. Its size is fixed
// because the saved machine knows the size. root/usr/local/lib/watari-lab/identity reads the disk.

package machine

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

const (
	identitySize  = 128 << 20
	identityBlock = 4096
)

// files returns all files that make up a machine's identity.
func (i Identity) files() []File {
	id := strings.ReplaceAll(i.MachineID.String(), "-", "")
	text := func(path, content string) File { return File{Path: path, Mode: 0o644, Data: []byte(content)} }
	return append([]File{
		text("/etc/hostname", i.Name+"\n"),
		text("/etc/hosts", i.Hosts),
		text("/etc/machine-id", id+"\n"),
		text("/etc/systemd/network/10-lan.network", fmt.Sprintf(lanNetwork, i.MAC, i.Address, i.Gateway)),
		text("/run/watari-lab/product-uuid", i.UUID.String()+"\n"),
		{Path: "/etc/ssh/ssh_host_ed25519_key", Mode: 0o600, Data: i.HostKey},
		{Path: "/root/.ssh/authorized_keys", Mode: 0o600, Data: []byte(i.LoginKey)},
	}, i.Files...)
}

// lanNetwork also sets the hardware address: the card of a restored machine has that of the template.
const lanNetwork = `[Match]
Driver=virtio_net

[Link]
MACAddress=%s

[Network]
Address=%s
Gateway=%s
LinkLocalAddressing=no
IPv6AcceptRA=no
`

// bootIDFile returns the file with the boot id of a restored machine, which did not boot.
func bootIDFile(id string) File {
	return File{Path: "/run/watari-lab/boot-id", Mode: 0o444, Data: []byte(id + "\n")}
}

// WriteIdentity writes the identity of the machine in dir, for its next start. It returns a hash of the identity. If
// the disk already has this identity, it is kept. A running machine keeps the disk with which it was started.
func WriteIdentity(dir string, i Identity) (hash string, err error) {
	if err := prepareDir(dir); err != nil {
		return "", err
	}
	files := i.files()
	if hash, err = hashFiles(files); err != nil {
		return "", fmt.Errorf("write the identity of %s: %w", i.Name, err)
	}
	path := filepath.Join(dir, identityFile)
	if written, err := hashOf(path); err == nil && written == hash {
		return hash, nil
	}
	if err := writeIdentity(path+".new", append(files, bootIDFile(uuid.NewString())), hash); err != nil {
		return "", fmt.Errorf("write the identity of %s: %w", i.Name, err)
	}
	return hash, os.Rename(path+".new", path)
}

// OpenIdentity opens the archive of the latest identity of the machine in dir. It is the input of RetakeIdentity. The
// caller closes it.
func OpenIdentity(dir string) (io.ReadCloser, error) {
	disk, err := os.Open(filepath.Join(dir, identityFile))
	if err != nil {
		return nil, err
	}
	size, _, err := readHeader(disk)
	if err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(disk, size), disk}, nil
}

// header is the first line of the disk: the size of the archive and the hash.
const header = "watari-lab-identity %d %s\n"

func hashOf(path string) (hash string, err error) {
	disk, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer disk.Close()
	_, hash, err = readHeader(disk)
	return hash, err
}

// readHeader reads the header's block, so that r is at the archive.
func readHeader(r io.Reader) (size int64, hash string, err error) {
	block := make([]byte, identityBlock)
	if _, err := io.ReadFull(r, block); err != nil {
		return 0, "", err
	}
	_, err = fmt.Sscanf(string(block), header, &size, &hash)
	return size, hash, err
}

// hashFiles hashes the size and date of files of this machine, such as the agent, instead of their content.
func hashFiles(files []File) (string, error) {
	hash := sha256.New()
	for _, f := range files {
		fmt.Fprintln(hash, f.Path, f.Mode, len(f.Data))
		hash.Write(f.Data)
		if f.Source != "" {
			info, err := os.Stat(f.Source)
			if err != nil {
				return "", err
			}
			fmt.Fprintln(hash, info.Size(), info.ModTime().UnixNano())
		}
	}
	return hex.EncodeToString(hash.Sum(nil)[:16]), nil
}

func writeIdentity(path string, files []File, hash string) error {
	disk, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer disk.Close()
	if err := disk.Truncate(identitySize); err != nil {
		return err
	}
	if _, err := disk.Seek(identityBlock, io.SeekStart); err != nil {
		return err
	}
	if err := writeArchive(disk, files); err != nil {
		return err
	}
	end, err := disk.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if end > identitySize {
		return fmt.Errorf("its files take %d MiB, a disk has %d MiB", end>>20, identitySize>>20)
	}
	// The machine reads whole blocks.
	size := (end - 1) / identityBlock * identityBlock
	if _, err := disk.WriteAt(fmt.Appendf(nil, header, size, hash), 0); err != nil {
		return err
	}
	return disk.Close()
}

func writeArchive(w io.Writer, files []File) error {
	archive := tar.NewWriter(w)
	for _, f := range files {
		if err := addToArchive(archive, f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return archive.Close()
}

func addToArchive(archive *tar.Writer, f File) error {
	var content io.Reader = bytes.NewReader(f.Data)
	size := int64(len(f.Data))
	if f.Source != "" {
		source, err := os.Open(f.Source)
		if err != nil {
			return err
		}
		defer source.Close()
		info, err := source.Stat()
		if err != nil {
			return err
		}
		content, size = source, info.Size()
	}
	err := archive.WriteHeader(&tar.Header{Name: filepath.Clean(f.Path)[1:], Mode: f.Mode, Size: size, Typeflag: tar.TypeReg, Format: tar.FormatPAX})
	if err != nil {
		return err
	}
	_, err = io.Copy(archive, content)
	return err
}
