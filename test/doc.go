// Package test holds the tests of the whole: the real programs, in a lab of two sites with two hosts each, or of two
// whole hosts (WATARI_TEST_HOSTS=whole), with real guests. They use what a user has, the command line; only faults are
// made behind its back, and what shows that they struck, and that no guest ran twice (package evidence), is seen there.
//
// They need root and the programs in build/bin (make build). WATARI_TEST_FULL=1 adds the long ones.
package test
