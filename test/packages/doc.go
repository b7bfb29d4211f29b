// Package packages tests the Debian packages that make deb builds: installation, upgrade, downgrade and purge in small
// Debian systems and on whole hosts of a lab. The tests need root. For each suite of Debian, the small systems take a
// minute and the whole hosts half an hour.
package packages
