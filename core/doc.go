// Package core decides everything that a manager decides: which hosts hold which grants, when a guest is placed,
// released or removed, how moves and drains proceed, what becomes of runs, who fetches which image, and what each host is
// ordered to do. It is pure: objects, reports and the time go in (World), changes to objects and orders to hosts come
// out. Nothing here does I/O, reads a clock or starts a goroutine, so that a simulator can run the same code.
//
// Admission decides about users' requests: it returns the change that grants a request, or a Refusal.
//
// Core decides again only about what has changed since its last decision. A Core that has seen nothing yet decides about
// everything; the simulator checks that both ways give the same result.
package core
