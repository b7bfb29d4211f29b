package rebalance

// together.go - the term of policy locality: bytes times distance between guests. Package locality finds the moves. Here the
// term keeps other policies from moving apart guests that talk to each other, unless such a move gains more.

// Together is the cost of guests that talk to guests on other hosts.
type Together struct {
	// Peers are the guests with which each guest exchanges bytes.
	Peers [][]Peer
	// Distance is what a byte costs between two hosts.
	Distance func(a, b int) float64
}

// Peer is a guest with which another one exchanges bytes.
type Peer struct {
	Guest int
	Rate  float64 // bytes per second, both ways
}

// togetherUnit is the bytes times distance, per second, that cost as much as one waiting processor.
const togetherUnit = 100e6

// Begin does nothing.
func (*Together) Begin(*State) {}

// at returns what a guest costs on a host.
func (t *Together) at(s *State, guest, host int) (cost float64) {
	for _, peer := range t.Peers[guest] {
		cost += peer.Rate * t.Distance(host, s.At[peer.Guest])
	}
	return cost / togetherUnit
}

// Cost returns the whole cost.
func (t *Together) Cost(s *State) (cost float64) {
	for g := range s.Guests {
		cost += t.at(s, g, s.At[g]) / 2
	}
	return cost
}

// Gain returns by how much the cost falls if a guest moves.
func (t *Together) Gain(s *State, guest, to int) float64 {
	return t.at(s, guest, s.At[guest]) - t.at(s, guest, to)
}

// Moved does nothing.
func (*Together) Moved(*State, int, int, int) {}

// Guests returns none: package locality proposes the moves.
func (*Together) Guests(*State, int) []int { return nil }

// Targets returns none.
func (*Together) Targets(*State, int) []int { return nil }

// Why is never called: the term proposes no moves.
func (*Together) Why(*State, int, int) string { return "" }
