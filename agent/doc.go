// Package agent carries out the decisions of package machine on one host. It brings guests and network into the state
// that the manager wants, and reports the observed state.
//
// driver.go feeds the machine and begins its acts. Each act runs in its own goroutine. The act's result is an input of
// the machine.
package agent
