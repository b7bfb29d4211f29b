// Package agent carries out for one host what package machine decides: it makes of guests and network what the manager
// wants, and reports what is.
//
// driver.go feeds the machine and begins its acts. Each act runs in a goroutine of its own, and its end is the machine's
// next input.
package agent
