package root_test

import (
	"strings"
	"testing"

	"watari/cmd/internal/stub"
)

func TestCompletion(t *testing.T) {
	manager := (&stub.Manager{Unary: answers}).Start(t)
	const nothing, files, folders = ":4", ":0", ":16"
	for line, want := range map[string]string{
		"cluster show |":               "md :4",
		"guest console |":              "md-0 md-1 :4",
		"host drain |":                 "a1 b1 :4",
		"image show |":                 "mpi :4",
		"run logs |":                   "md-run-1 :4",
		"run |":                        "attach cancel list logs processes remove show md :4",
		"cluster create x --image |":   "mpi :4",
		"cluster create x --spread s|": "site :4",
		"cluster create x --memory |":  nothing,
		"migrate md-0 --to |":          "a1 b1 :4",
		"run md --name |":              nothing,
		"run md --stage |":             files,
		"run md -- |":                  nothing,
		"image build |":                "mpi :4",
		"image build x --tree |":       folders,
		"version -o j|":                "json :4",
		"policy apply |":               files,
		"policy apply x |":             nothing,
		"policy show --version |":      "4 3 :4",
		"policy rollback |":            "4 3 :4",
		"explain guest |":              "md-0 md-1 :4",
		"explain host b|":              "b1 :4",
		"cluster delete md |":          nothing,
		"run cancel |":                 nothing, // all have ended
		"volume create |":              nothing,
		"volume list |":                nothing,
		"guest cp |":                   "md-0: md-1: :6",
		"guest cp in|":                 files,
		"guest cp md-0:/x |":           files,
		"guest cp in md-1|":            "md-1: :6",
		"guest cp md-0:/|":             nothing,
		"volume cp |":                  "data: scratch: :6",
		"volume cp data:x |":           files,
		"recover --keep md-1|":         "md-1= :6",
	} {
		words := strings.Split(strings.TrimSuffix(line, "|"), " ")
		result := manager.Run(t, append([]string{"__complete"}, words...)...)
		var got []string
		for candidate := range strings.Lines(result.Out) {
			name, _, _ := strings.Cut(strings.TrimSpace(candidate), "\t")
			got = append(got, name)
		}
		if all := strings.Join(got, " "); all != want {
			t.Errorf("%s: %q, want %q", line, all, want)
		}
	}
}
