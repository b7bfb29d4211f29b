// Package protocol numbers the versions of the protocol between manager and agent. Each side states its version in
// every message (HostWanted.protocol, HostObserved.protocol). Both then use the older of the two versions.
package protocol

// Version is the version that this program speaks.
//
//	1  orders and reports, by term and generation; messages do not have the version
//	2  orders name the host's boot and are sent only after the host's first report in a session; reports name the boot in
//	   which a guest's epoch began, and whether a process of it was seen
//	3  orders have a stamp and facts of guests; reports have the latest stamp, and, until the first orders, facts and epochs.
//	   Each side works without them if the other is older
//	4  orders name a cluster's guests once, not in each guest's identity; after the first orders of a session, the manager
//	   sends only what has changed. An older agent gets complete orders
const Version = 4

// Changes is the first version with orders that contain only changes.
const Changes = 4

// LeaderHeader is the header by which a manager that does not lead names the URL of the one that leads.
const LeaderHeader = "Watari-Leader"

// VolumeStep is the step, in bytes, to which hosts round up what a volume uses of their disks (VolumeObserved.used_bytes). After
// each change of a report the manager decides anew.
const VolumeStep = 64 << 20
