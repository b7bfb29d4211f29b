// Package test tests the whole system: the real programs with real guests, in a lab of two sites with two hosts each,
// or of two whole hosts (WATARI_TEST_HOSTS=whole). The tests use the command line, as a user does. Only faults, and the
// evidence that they took effect and that no guest ran twice (package evidence), bypass it.
//
// The tests need root and the programs in build/bin (make build). WATARI_TEST_FULL=1 adds the long tests.
// WATARI_TEST_HALF=1 or 2 gives a lab of its own to one of two processes that run at a time (make test-system).
package test
