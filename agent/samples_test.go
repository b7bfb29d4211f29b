package agent

import (
	"net/http/httptest"
	"slices"
	"testing"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

func TestWhatSamplesCannotShowIsReported(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.agent.config.SampleProblems = func() []string { return []string{"logins may go unnoticed"} }
	if report, _ := o.agent.Observed(); !slices.Contains(report.Problems, "logins may go unnoticed") {
		t.Errorf("problems: %q", report.Problems)
	}
}

func TestSamplesAreSentAsTheyAreMeasured(t *testing.T) {
	o := newOutside(t)
	o.start()
	first, second := make(chan struct{}), make(chan struct{})
	asked := 0
	o.agent.config.Samples = func() (*v1.HostSample, <-chan struct{}) {
		asked++
		switch asked {
		case 1: // nothing is measured yet
			close(first)
			return nil, first
		case 2:
			close(second)
			return &v1.HostSample{CpuOwner: 1}, second
		}
		return &v1.HostSample{CpuOwner: 2}, make(chan struct{})
	}
	server := httptest.NewServer(o.agent.Handler())
	defer server.Close()
	stream, err := watariv1connect.NewAgentServiceClient(server.Client(), server.URL).Samples(t.Context(), connect.NewRequest(&v1.SamplesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []float64{1, 2} {
		if !stream.Receive() || stream.Msg().CpuOwner != want {
			t.Errorf("got %v (%v), want %v", stream.Msg(), stream.Err(), want)
		}
	}
	stream.Close()
}
