package output

import (
	"fmt"
	"strings"

	v1 "watari/api/watariv1"
)

// CPU describes a guest's CPU: "EPYC-Rome by AMD, with 84 features, without npt, svm". It is empty if the host chooses.
func CPU(c *v1.CPU) string {
	if c.GetModel() == "" {
		return ""
	}
	text := c.Model
	if c.Vendor != "" {
		text += " by " + c.Vendor
	}
	if len(c.Features) > 0 {
		text += ", with " + Count(len(c.Features), "feature")
	}
	const shown = 6
	if n := len(c.Disabled); n > shown {
		text += fmt.Sprintf(", without %s and %d more", strings.Join(c.Disabled[:shown], ", "), n-shown)
	} else if n > 0 {
		text += ", without " + strings.Join(c.Disabled, ", ")
	}
	return text
}

// Platform describes a platform in one line.
func Platform(p *v1.Platform) string {
	parts := []string{strings.ToUpper(State(p.GetAcceleration()))}
	if p.GetCpu().GetModel() == "" && p.GetCpu().GetVendor() != "" {
		parts = append(parts, "CPU by "+p.Cpu.Vendor)
	}
	for _, part := range []string{CPU(p.GetCpu()), p.GetMachine()} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if p.GetQemuVersion() != "" {
		parts = append(parts, "started by QEMU "+p.QemuVersion)
	}
	text := strings.Join(parts, "; ")
	if p.GetExplanation() != "" {
		text += ": " + p.Explanation
	}
	return text
}
