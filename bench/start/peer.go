package main

// peer.go - the competitor: a stock Debian image with systemd, booted by libvirt until ssh answers.

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"libvirt.org/go/libvirtxml"

	"watari/bench/system"
)

const peerDir = "/var/cache/watari/bench-start"

// peerImage builds the stock image once: the same packages, systemd, an ssh server, Debian's kernel and initial RAM
// file system, and a static address for each of four MAC addresses.
const peerImage = `set -e
dir=$1; shift
[ ! -e $dir/done ] || exit 0
rm -rf $dir; mkdir -p $dir
mmdebstrap --variant=important --aptopt='APT::Install-Recommends "false"' \
  --include=systemd-sysv,openssh-server,linux-image-cloud-amd64,initramfs-tools,openmpi-bin,lammps \
  --customize-hook='for i in 0 1 2 3; do printf "[Match]\nMACAddress=02:99:00:00:00:0$i\n[Network]\nAddress=10.99.0.1$i/32\n[Route]\nGateway=169.254.99.1\nGatewayOnLink=yes\n" > $1/etc/systemd/network/$i.network; done' \
  --customize-hook='chroot $1 systemctl enable systemd-networkd ssh' \
  --customize-hook='rm -f $1/etc/ssh/ssh_host_*; chroot $1 ssh-keygen -A' \
  --customize-hook='echo "/dev/vda / ext4 defaults 0 1" > $1/etc/fstab' \
  --customize-hook="cp \$1/vmlinuz $dir/vmlinuz; cp \$1/initrd.img $dir/initrd.img" \
  bookworm $dir/root.tar
mkdir $dir/root; tar -C $dir/root -xf $dir/root.tar; rm $dir/root.tar
truncate -s 3G $dir/root.img; mke2fs -q -t ext4 -d $dir/root $dir/root.img; rm -rf $dir/root
touch $dir/done`

// The directory of the peer's files on a host, and the domain type. takePeer changes both.
var filesDir, peerType = peerDir, "qemu"

// takenDir is where libvirt's users keep images on a whole host, which does not share this machine's files.
const takenDir = "/var/lib/libvirt/images/peer"

// takePeer copies the peer's files to whole hosts, where the peer runs under KVM.
func takePeer(s *system.System) error {
	fmt.Println("== the peer's image onto the hosts")
	disk := peerDir + "/root.qcow2"
	if out, err := exec.Command("qemu-img", "convert", "-O", "qcow2", peerDir+"/root.img", disk).CombinedOutput(); err != nil {
		return fmt.Errorf("make the peer's disk: %w: %s", err, out)
	}
	defer os.Remove(disk)
	for _, host := range hosts {
		for from, to := range map[string]string{disk: "root.img", peerDir + "/vmlinuz": "vmlinuz", peerDir + "/initrd.img": "initrd.img"} {
			file, err := os.Open(from)
			if err != nil {
				return err
			}
			err = s.WriteTo(host, file, takenDir+"/"+to)
			file.Close()
			if err != nil {
				return err
			}
		}
	}
	filesDir, peerType = takenDir, "kvm"
	return nil
}

func buildPeer() error {
	fmt.Println("== the peer's image: stock Debian with systemd, ssh, and the same packages")
	c := exec.Command("sh", "-c", peerImage, "sh", peerDir)
	c.Stderr = os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("build the peer's image: %w", err)
	}
	return nil
}

func peerDomain(i int, disk string) (string, error) {
	d := libvirtxml.Domain{
		Type: peerType, Name: fmt.Sprintf("peer-%d", i), Memory: &libvirtxml.DomainMemory{Value: 512, Unit: "MiB"},
		VCPU: &libvirtxml.DomainVCPU{Value: 1},
		OS: &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "pc", Type: "hvm"},
			Kernel: filesDir + "/vmlinuz", Initrd: filesDir + "/initrd.img", Cmdline: "root=/dev/vda rw console=ttyS0 quiet"},
		Features: &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}},
		CPU:      &libvirtxml.DomainCPU{Mode: "maximum"},
		Devices: &libvirtxml.DomainDeviceList{
			Disks: []libvirtxml.DomainDisk{{Device: "disk", Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "qcow2"},
				Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: disk}},
				Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"}}},
			Interfaces: []libvirtxml.DomainInterface{{MAC: &libvirtxml.DomainInterfaceMAC{Address: fmt.Sprintf("02:99:00:00:00:0%d", i)},
				Source: &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}},
				Target: &libvirtxml.DomainInterfaceTarget{Dev: "peer0", Managed: "no"}, Model: &libvirtxml.DomainInterfaceModel{Type: "virtio"}}},
			RNGs:     []libvirtxml.DomainRNG{{Model: "virtio", Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}}}},
			Consoles: []libvirtxml.DomainConsole{{Target: &libvirtxml.DomainConsoleTarget{Type: "serial"}}},
		},
	}
	return d.Marshal()
}

// peerDisk and peerXML return the paths of a peer's files on its host.
func peerDisk(i int) string      { return fmt.Sprintf("%s/%d.qcow2", filesDir, i) }
func peerXML(host string) string { return "/run/peer-" + host + ".xml" }

// startPeer boots one stock guest on each host, and returns when ssh answers on all of them.
func startPeer(s *system.System, hosts []string) (time.Duration, error) {
	format := "raw"
	if peerType == "kvm" {
		format = "qcow2"
	}
	for i, host := range hosts {
		xml, err := peerDomain(i, peerDisk(i))
		if err != nil {
			return 0, err
		}
		if err := s.WriteTo(host, strings.NewReader(xml), peerXML(host)); err != nil {
			return 0, err
		}
		if _, err := s.OnHost(host, fmt.Sprintf("qemu-img create -q -f qcow2 -F %s -b %s/root.img %s", format, filesDir, peerDisk(i))); err != nil {
			return 0, err
		}
		if _, err := s.OnHost(host, fmt.Sprintf(`ip tuntap add peer0 mode tap vnet_hdr; ip addr add 169.254.99.1/32 dev peer0; ip link set peer0 up; ip route add 10.99.0.1%d dev peer0`, i)); err != nil {
			return 0, err
		}
	}
	begin := time.Now()
	err := onAll(hosts, func(i int, host string) error {
		_, err := s.OnHost(host, fmt.Sprintf(`virsh -q -c qemu:///system create %s
until timeout 2 bash -c 'head -c 4 </dev/tcp/10.99.0.1%d/22' 2>/dev/null | grep -q SSH; do sleep 0.2; done`, peerXML(host), i))
		return err
	})
	took := time.Since(begin)
	for i, host := range hosts {
		s.OnHost(host, fmt.Sprintf("virsh -q -c qemu:///system destroy peer-%d; ip link del peer0; rm -f %s %s", i, peerDisk(i), peerXML(host)))
	}
	return took, err
}

// onAll calls f for all hosts in parallel.
func onAll(hosts []string, f func(i int, host string) error) error {
	var wait sync.WaitGroup
	errs := make([]string, len(hosts))
	for i, host := range hosts {
		wait.Go(func() {
			if err := f(i, host); err != nil {
				errs[i] = err.Error()
			}
		})
	}
	wait.Wait()
	if text := strings.Join(errs, ""); text != "" {
		return fmt.Errorf("%s", text)
	}
	return nil
}
