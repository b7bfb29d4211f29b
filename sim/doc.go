// Package sim runs a whole Watari in one goroutine: the real core and the real machines of agents, over a simulated store,
// network, disks, hypervisors and clocks, as TigerBeetle's and FoundationDB's simulators do. All chance comes from one seed,
// so that a run can be repeated exactly.
//
// A run has a plan: the requests of users and the faults, with their times. While the plan lasts, and afterwards until
// everything has settled, each step is checked (check.go): no guest runs twice, none is lost without cause, no epoch,
// address or room is given twice, and nothing stays stuck. A plan that fails is shortened as long as it still fails
// (shrink.go).
package sim
