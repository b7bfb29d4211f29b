/* rail_names.h - what pm(7) calls the rails. */
#ifndef RAIL_NAMES_H
#define RAIL_NAMES_H

#include <pm.h>

static const char *const rail_names[] = {
	[PM_RAIL_SHM] = "shm",
	[PM_RAIL_IVSHMEM] = "ivshmem",
	[PM_RAIL_VERBS] = "verbs",
	[PM_RAIL_UDP] = "udp",
};
_Static_assert(sizeof rail_names / sizeof rail_names[0] == PM_RAILS, "a rail has no name");

#endif
