// Package packages tests the Debian packages that make deb builds: they are installed, upgraded, downgraded and purged in
// small Debian systems. They need root, and a minute for each suite of Debian.
package packages
