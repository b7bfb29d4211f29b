// Package evidence decides from samples and logs whether two copies of a guest ran, and whether a fault struck a move
// in the intended stage. The deciding code is pure. The code that reads /proc and logs is separate.
package evidence
