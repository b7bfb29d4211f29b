// Package evidence judges what the tests of the whole have seen: whether two copies of a guest ran, and whether a fault
// struck a move in the stage that it was meant for. What judges is pure; what reads /proc and logs is apart from it.
package evidence
