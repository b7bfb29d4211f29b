// Package sharing decides how images and templates travel: which host of a site fetches a blob from outside, which
// hosts fetch it from each other, which host makes a template, and which hosts wait for it. The package is pure: no
// I/O, no clock. The manager decides with Routes and Templates; a host decides with NextSource and NextStep. See
// docs/design/images-travel.md.
package sharing
