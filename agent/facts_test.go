package agent

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

func someFacts() *v1.GuestFacts {
	return &v1.GuestFacts{Owner: "ann", Index: 3, Cluster: &v1.ClusterFacts{Name: "md", Uid: "u", Mtu: 1420}, StartedEpoch: 4}
}

func TestARecordKeepsFactsAndIsGoodWithoutThem(t *testing.T) {
	s := &RecordStore{Dir: t.TempDir(), Now: time.Now, Write: writeFile}
	const uid = "00000000-0000-4000-8000-000000000001"
	r := &machine.Record{UID: uid, Name: "md-3", Epoch: 4, Phase: machine.PhaseStarted, Facts: &machine.Facts{GuestFacts: someFacts()}}
	if err := s.Save(r, false); err != nil {
		t.Fatal(err)
	}
	got, err := s.LoadOne(uid)
	if err != nil || !proto.Equal(got.Facts.GuestFacts, someFacts()) {
		t.Fatal(got, err)
	}
	if list := s.epochs.list(); len(list) != 1 || list[0].Uid != uid || list[0].Epoch != 4 {
		t.Errorf("epochs %v", list)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string]string{
		"no facts":        strings.Replace(string(text), `"facts"`, `"fictions"`, 1),
		"damaged facts":   strings.Replace(string(text), `"index":3`, `"index":"x"`, 1),
		"a newer version": strings.Replace(string(text), `"index":3`, `"index":3,"colour":"red"`, 1),
	} {
		back := &machine.Record{}
		if err := json.Unmarshal([]byte(damaged), back); err != nil || back.Epoch != 4 || back.UID != uid {
			t.Errorf("%s: the record is lost: %v", name, err)
		}
		if (back.Facts != nil && back.Facts.GuestFacts != nil) != (name == "a newer version") {
			t.Errorf("%s: %v", name, back.Facts)
		}
	}
}

func TestReportsLeaveOutWhatTheManagerKnows(t *testing.T) {
	o := &v1.HostObserved{Guests: []*v1.GuestObserved{{Uid: "known", Facts: someFacts()}, {Uid: "stranger", Facts: someFacts()}},
		Epochs: []*v1.KnownEpoch{{Uid: "known", Epoch: 4}}}
	trim(o, func(uid string) bool { return uid == "known" })
	if o.Guests[0].Facts != nil || o.Guests[1].Facts == nil || o.Epochs != nil {
		t.Error(o)
	}
}
