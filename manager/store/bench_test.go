package store

import (
	"fmt"
	"testing"

	v1 "watari/api/watariv1"

	"google.golang.org/protobuf/proto"
)

// benchmarkGuests opens a store that has n guests.
func benchmarkGuests(b *testing.B, n int) *Store {
	s := open(b, b.TempDir())
	b.Cleanup(func() { s.Close() })
	var changes []Change
	for i := range n {
		changes = append(changes, Change{Create(&v1.Guest{Meta: named(fmt.Sprintf("md-%d", i)), Cluster: "md", ImageDigest: "sha256:0123456789", Address: "10.77.0.10"})})
	}
	for _, err := range s.Batch(b.Context(), changes) {
		if err != nil {
			b.Fatal(err)
		}
	}
	return s
}

// place returns the placement of the i-th guest, as a change with its event.
func place(s *Store, i int) Change {
	g := proto.CloneOf(s.Snapshot().Guests[fmt.Sprintf("md-%d", i)])
	g.Host = "a1"
	return Change{Update(g), Record(&v1.Event{Kind: "guest", Name: g.Meta.Name, Message: "is started on a1"})}
}

// BenchmarkPlaceOneByOne and BenchmarkPlaceInBatches place 64 guests of 10,000 in each round.
func BenchmarkPlaceOneByOne(b *testing.B) {
	s := benchmarkGuests(b, 10_000)
	for b.Loop() {
		for i := range 64 {
			if err := s.Txn(b.Context(), place(s, i)...); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkPlaceInBatches(b *testing.B) {
	s := benchmarkGuests(b, 10_000)
	for b.Loop() {
		var changes []Change
		for i := range 64 {
			changes = append(changes, place(s, i))
		}
		for _, err := range s.Batch(b.Context(), changes) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}
