// Package rules holds the rules of this repository as tests: formatting, comments, imports, generated code, help
// and man pages.
package rules
