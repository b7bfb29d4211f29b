// Package packages tests the Debian packages that make deb builds: they are installed, upgraded, downgraded and purged in
// small Debian systems, and on whole hosts of a lab. They need root. For each suite of Debian the small systems take a minute,
// the whole hosts half an hour.
package packages
