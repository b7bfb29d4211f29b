// Package version holds the version that the build stamps into the programs.
package version

// Version is "unknown" where the build did not stamp one.
var Version = "unknown"
