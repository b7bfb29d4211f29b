package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheVolumeIsFoundByItsSerialNumber(t *testing.T) {
	blocks := t.TempDir()
	if _, err := volumeDevice(blocks); err == nil || !strings.Contains(err.Error(), "no disk with the serial number watari-volume") {
		t.Errorf("without a disk: %v", err)
	}
	for name, serial := range map[string]string{"vda": "", "vdb": "another\n", "vdc": volumeSerial + "\n", "loop0": "-"} {
		dir := filepath.Join(blocks, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if serial != "-" {
			if err := os.WriteFile(filepath.Join(dir, "serial"), []byte(serial), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if device, err := volumeDevice(blocks); err != nil || device != "/dev/vdc" {
		t.Errorf("it is %s, %v", device, err)
	}
}
