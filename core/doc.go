// Package core makes all decisions of a manager: the grants of guests, their placement, release and removal, the steps
// of moves, drains and runs, the sharing of images, and the orders of each host. It is pure: objects, reports and the
// time go in (World), changes to objects and orders to hosts come out. It does no I/O, reads no clock and starts no
// goroutine, so that a simulator can run the same code.
//
// Admission decides about users' requests: it returns the change that grants a request, or a Refusal.
//
// Core decides again only about what has changed since its last decision. A new Core decides about everything. The
// simulator checks that both have the same result.
package core
