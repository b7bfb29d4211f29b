// Package rules tests the rules of this repository: formatting, comments, imports, generated code, help texts and man
// pages.
package rules
