// peers.go starts the programs with which Watari is compared.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"watari/internal/nethost"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const barePort = 51820

// startBareWireGuard makes wg0 on both hosts, in the kernel if it has WireGuard, or else with upstream's program. Both
// have wg-quick's default MTU of 1420.
func startBareWireGuard(ctx context.Context, a, b *nethost.Host, program string) (kind string, err error) {
	var keys [2]wgtypes.Key
	for i := range keys {
		if keys[i], err = wgtypes.GeneratePrivateKey(); err != nil {
			return "", err
		}
	}
	for i, h := range []*nethost.Host{a, b} {
		other, own := []*nethost.Host{b, a}[i], []netip.Prefix{bareA, bareB}[i]
		kind = "kernel"
		if _, err := h.Run(ctx, "ip", "link", "add", "wg0", "type", "wireguard"); err != nil {
			kind = "user space"
			if program, err = filepath.Abs(program); err != nil {
				return "", err
			}
			if _, err := h.Run(ctx, program, "wg0"); err != nil {
				return "", fmt.Errorf("start WireGuard alone: %w", err)
			}
		}
		if err := configureBare(h, kind, keys[i], keys[1-i].PublicKey(), other.Address); err != nil {
			return "", fmt.Errorf("configure WireGuard alone on %s: %w", h.Name, err)
		}
		if err := h.Script(ctx, fmt.Sprintf("ip addr add %s dev wg0", own), "ip link set wg0 mtu 1420 up"); err != nil {
			return "", err
		}
	}
	return kind, nil
}

func configureBare(h *nethost.Host, kind string, own, peer wgtypes.Key, endpoint netip.Addr) error {
	if kind == "kernel" {
		return h.In(func() error {
			control, err := wgctrl.New()
			if err != nil {
				return err
			}
			defer control.Close()
			port := barePort
			return control.ConfigureDevice("wg0", wgtypes.Config{PrivateKey: &own, ListenPort: &port, Peers: []wgtypes.PeerConfig{{
				PublicKey: peer, Endpoint: net.UDPAddrFromAddrPort(netip.AddrPortFrom(endpoint, barePort)),
				AllowedIPs: []net.IPNet{{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}},
			}}})
		})
	}
	// WireGuard's cross-platform control protocol, on the socket in the host's own /run.
	socket, err := net.Dial("unix", fmt.Sprintf("/proc/%d/root/run/wireguard/wg0.sock", h.PID()))
	if err != nil {
		return err
	}
	defer socket.Close()
	fmt.Fprintf(socket, "set=1\nprivate_key=%x\nlisten_port=%d\npublic_key=%x\nendpoint=%s:%d\nallowed_ip=0.0.0.0/0\n\n",
		own[:], barePort, peer[:], endpoint, barePort)
	answer := make([]byte, 256)
	n, err := socket.Read(answer)
	if err != nil {
		return err
	}
	if text := strings.TrimSpace(string(answer[:n])); text != "errno=0" {
		return errors.New(text)
	}
	return nil
}

// startOpenVPN joins two hosts as in the paper on MPI over grids of virtual machines (Tatezono et al.): OpenVPN as
// client and server, TAP devices bridged with the guests' interfaces, PKI. b's host is the server, so that the path is
// as short as possible. It uses UDP and AES-256-GCM, and otherwise the defaults of Debian's package.
func startOpenVPN(ctx context.Context, a, b *nethost.Host) (kind string, err error) {
	dir, err := os.MkdirTemp("", "bench-overlay")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	var prints [2]string
	for i, h := range []*nethost.Host{a, b} {
		if prints[i], err = writeCertificate(filepath.Join(dir, h.Name)); err != nil {
			return "", err
		}
	}
	for i, h := range []*nethost.Host{b, a} { // the server starts first
		own, role := openVPNB, "--mode server --tls-server --dh none --client-to-client --keepalive 10 60"
		if h == a {
			own, role = openVPNA, "--client --nobind --resolv-retry 5 --remote "+b.Address.String()+" 1194"
		}
		certificate := filepath.Join(dir, h.Name)
		err := h.Script(ctx, "ip link add br0 type bridge", "ip tuntap add tap0 mode tap", "ip link set tap0 master br0",
			"ip link set tap0 up", "ip link set br0 up", fmt.Sprintf("ip addr add %s dev br0", own),
			"openvpn --dev tap0 --dev-type tap --proto udp4 --port 1194 --data-ciphers AES-256-GCM --persist-key"+
				" --cert "+certificate+".crt --key "+certificate+".key --peer-fingerprint "+prints[i]+
				" --log /run/openvpn.log --daemon "+role)
		if err != nil {
			return "", fmt.Errorf("start OpenVPN: %w", err)
		}
	}
	version, _ := a.Run(ctx, "sh", "-c", "openvpn --version | cut -d' ' -f1,2 | head -n 1")
	return strings.TrimSpace(version) + ", client and server, TAP in a bridge, UDP, AES-256-GCM", nil
}

// writeCertificate makes a self-signed certificate in prefix.crt and prefix.key and returns its SHA-256 fingerprint.
func writeCertificate(prefix string) (fingerprint string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: filepath.Base(prefix)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyAgreement,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return "", err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	var pairs []string
	for _, octet := range sum {
		pairs = append(pairs, strings.ToUpper(hex.EncodeToString([]byte{octet})))
	}
	return strings.Join(pairs, ":"), errors.Join(
		os.WriteFile(prefix+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644),
		os.WriteFile(prefix+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
}
