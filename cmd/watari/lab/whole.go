package lab

// whole.go - the options of watari lab up for whole hosts.

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
	"watari/lab"
)

// allHosts is the value of --whole if none is given.
const allHosts = "all"

// wholeFlags are the flags of `watari lab up` for whole hosts.
type wholeFlags struct {
	hosts, suites []string
	models        []string
	memory        string
	cells         int
}

func addWholeFlags(flags *pflag.FlagSet) *wholeFlags {
	w := &wholeFlags{}
	flags.StringSliceVar(&w.hosts, "whole", nil, "make all hosts whole hosts, or only those of the named sites and hosts, as in --whole=a,b2")
	flags.Lookup("whole").NoOptDefVal = allHosts
	flags.StringSliceVar(&w.suites, "suite", nil, "Debian release of whole hosts, bookworm or trixie; b=trixie sets that of site b (default bookworm)")
	flags.StringArrayVar(&w.models, "cpu-model", nil, "CPU of whole hosts in the form of QEMU's -cpu; b=EPYC,-xsave,-avx sets that of site b (default: all features that work under emulation)")
	flags.StringVar(&w.memory, "memory", "", "memory of each whole host (default 3G)")
	flags.IntVar(&w.cells, "cells", 0, "NUMA cells of each whole host, with one CPU each: 1, 2 or 4 (default 2)")
	return w
}

// wholeArgs refuses arguments. A value of --whole after a space would be an argument.
func wholeArgs(command *cobra.Command, args []string) error {
	if len(args) > 0 && command.Flags().Changed("whole") {
		return cli.Usagef("unexpected argument %q: sites and hosts are written --whole=%[1]s", args[0])
	}
	return cli.Args()(command, args)
}

// read returns which hosts are whole hosts, or nil without these flags.
func (w *wholeFlags) read(flags *pflag.FlagSet) (whole *lab.Whole, err error) {
	if !flags.Changed("whole") {
		for _, name := range []string{"suite", "cpu-model", "memory", "cells"} {
			if flags.Changed(name) {
				return nil, fmt.Errorf("--%s is for whole hosts: use it with --whole", name)
			}
		}
		return nil, nil
	}
	whole = &lab.Whole{Hosts: w.hosts, Cells: w.cells}
	if slices.Contains(w.hosts, allHosts) {
		if len(w.hosts) > 1 {
			return nil, errors.New("--whole names all hosts, and some")
		}
		whole.Hosts = nil
	}
	if whole.Suites, err = ofHosts("--suite", w.suites); err != nil {
		return nil, err
	}
	if whole.Models, err = ofHosts("--cpu-model", w.models); err != nil {
		return nil, err
	}
	if w.memory != "" {
		bytes, err := output.ParseSize(w.memory)
		if err != nil {
			return nil, fmt.Errorf("--memory: %w", err)
		}
		whole.Memory = bytes >> 20
	}
	return whole, nil
}

// ofHosts parses a flag's values: b=VALUE is for a host or the hosts of a site, VALUE is for all others.
func ofHosts(flag string, texts []string) (map[string]string, error) {
	values := map[string]string{}
	for _, text := range texts {
		who, value, some := strings.Cut(text, "=")
		if !some {
			who, value = "", text
		}
		if values[who] != "" {
			return nil, fmt.Errorf("%s %s: given twice", flag, text)
		}
		values[who] = value
	}
	return values, nil
}
