// Package version holds the version that the build puts into the programs.
package version

// Version is "unknown" if the build did not set it.
var Version = "unknown"
