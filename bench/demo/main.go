// Demo compares the logs of the demo's two runs and writes build/reports/demo.json.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"text/tabwriter"

	"google.golang.org/protobuf/encoding/protojson"

	v1 "watari/api/watariv1"
	"watari/bench/report"
)

// logFile is one run's log.
type logFile struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Lines  int    `json:"thermo_lines"`
}

// demoReport is build/reports/demo.json.
type demoReport struct {
	report.Header
	Identical        bool    `json:"identical"` // the thermodynamic tables, line by line
	Difference       string  `json:"difference,omitempty"`
	Undisturbed      logFile `json:"undisturbed_log"`
	Migrated         logFile `json:"migrated_log"`
	LastStep         int     `json:"last_step"`
	MigrationBegin   int     `json:"migration_begin_step"`
	MigrationEnd     int     `json:"migration_end_step"`
	InsideRun        bool    `json:"migration_inside_run"` // both strictly inside
	ImageS           float64 `json:"image_s"`
	ClusterReadyS    float64 `json:"cluster_ready_s"`
	UndisturbedS     float64 `json:"undisturbed_s"`
	MigratedS        float64 `json:"migrated_s"`
	MigrationTotalS  float64 `json:"migration_total_s"`
	DowntimeMS       uint32  `json:"downtime_ms"`
	MigrationBytes   uint64  `json:"migration_bytes"`
	MigrationSource  string  `json:"migration_source"`
	MigrationTarget  string  `json:"migration_target"`
	Acceleration     string  `json:"acceleration"`
	BackTotalS       float64 `json:"back_total_s,omitempty"` // the move back, if there was one
	BackDowntimeMS   uint32  `json:"back_downtime_ms,omitempty"`
	BackMigrationEnd int     `json:"back_end_step,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run() error {
	r := demoReport{Header: report.NewHeader("demo", "make demo")}
	out := flag.String("out", "build/reports/demo.json", "the report")
	moveFile := flag.String("migration", "", "the move, as `watari migrate -o json` printed it")
	backFile := flag.String("back", "", "the move back, likewise; may be missing")
	flag.StringVar(&r.Undisturbed.Path, "undisturbed", "", "log of the run that was left alone")
	flag.StringVar(&r.Migrated.Path, "migrated", "", "log of the run under which a guest moved")
	flag.IntVar(&r.MigrationBegin, "begin-step", 0, "last step printed when the move began")
	flag.IntVar(&r.MigrationEnd, "end-step", 0, "last step printed when the move had ended")
	flag.IntVar(&r.BackMigrationEnd, "back-end-step", 0, "last step printed when the move back had ended")
	flag.Float64Var(&r.ImageS, "image-s", 0, "seconds for the image")
	flag.Float64Var(&r.ClusterReadyS, "ready-s", 0, "seconds until the cluster was ready")
	flag.Float64Var(&r.UndisturbedS, "undisturbed-s", 0, "seconds of the run that was left alone")
	flag.Float64Var(&r.MigratedS, "migrated-s", 0, "seconds of the run under which a guest moved")
	flag.StringVar(&r.Acceleration, "acceleration", "", "kvm or tcg")
	flag.Parse()
	if err := r.compare(); err != nil {
		return err
	}
	if err := r.moves(*moveFile, *backFile); err != nil {
		return err
	}
	if err := report.Write(*out, r); err != nil {
		return err
	}
	r.print(*out)
	if !r.Identical {
		return fmt.Errorf("the two runs differ: %s", r.Difference)
	}
	if !r.InsideRun {
		return fmt.Errorf("the move (steps %d to %d) was not strictly inside the run of %d steps", r.MigrationBegin, r.MigrationEnd, r.LastStep)
	}
	return nil
}

func (r *demoReport) compare() error {
	var tables [2][]string
	for i, log := range []*logFile{&r.Undisturbed, &r.Migrated} {
		lines, err := thermo(log.Path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(log.Path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		log.SHA256, log.Lines, tables[i] = hex.EncodeToString(sum[:]), len(lines), lines
	}
	r.Difference = difference(tables[0], tables[1])
	r.Identical = r.Difference == ""
	last, err := stepOf(tables[1][len(tables[1])-1])
	if err != nil {
		return fmt.Errorf("last line of %s: %w", r.Migrated.Path, err)
	}
	r.LastStep = last
	r.InsideRun = r.MigrationBegin > 0 && r.MigrationBegin <= r.MigrationEnd && r.MigrationEnd < last
	return nil
}

func (r *demoReport) moves(path, back string) error {
	m, err := readMigration(path)
	if err != nil {
		return err
	}
	r.MigrationTotalS, r.DowntimeMS = float64(m.TotalMs)/1000, m.DowntimeMs
	r.MigrationBytes = m.GetProgress().GetTransferredBytes()
	r.MigrationSource, r.MigrationTarget = m.Source, m.Target
	if back == "" {
		return nil
	}
	if m, err = readMigration(back); err != nil {
		return err
	}
	r.BackTotalS, r.BackDowntimeMS = float64(m.TotalMs)/1000, m.DowntimeMs
	return nil
}

func readMigration(path string) (*v1.Migration, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := &v1.Migration{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(content, m); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if m.State != v1.MigrationState_MIGRATION_STATE_DONE {
		return nil, fmt.Errorf("the move in %s is not done: %v %s", path, m.State, m.Message)
	}
	return m, nil
}

func (r *demoReport) print(path string) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(format string, a ...any) { fmt.Fprintf(w, format+"\n", a...) }
	row("\nimage ready\t%.1f s", r.ImageS)
	row("cluster ready\t%.1f s\t4 guests on 4 hosts at 2 sites, %s", r.ClusterReadyS, r.Acceleration)
	row("run left alone\t%.1f s\t%d lines of thermodynamic output", r.UndisturbedS, r.Undisturbed.Lines)
	row("run with a live migration\t%.1f s\tmoved from %s to %s between steps %d and %d of %d", r.MigratedS, r.MigrationSource, r.MigrationTarget, r.MigrationBegin, r.MigrationEnd, r.LastStep)
	row("migration, total\t%.1f s\t%.1f MB sent", r.MigrationTotalS, float64(r.MigrationBytes)/1e6)
	row("migration, guest stopped\t%d ms", r.DowntimeMS)
	if r.BackTotalS > 0 {
		row("migration back\t%.1f s\tstopped %d ms, ended at step %d", r.BackTotalS, r.BackDowntimeMS, r.BackMigrationEnd)
	}
	row("outputs identical\t%v", r.Identical)
	row("report\t%s", path)
	w.Flush()
}
