// Package agent reconciles one host: it makes of guests and network what the manager wants, and reports what is.
//
// Deciding (reconcile.go, condition.go) is pure and apart from doing (guest.go and what it calls). Each guest has
// one goroutine that owns its record; long acts on a guest run beside it, so that no guest waits for another.
package agent
