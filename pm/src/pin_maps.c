/*
 * pin_maps.c - what kind of memory a range is. The kernel is asked for a mapping (Linux 6.11), or else all of them are
 * read as text, which takes as long as there are many.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "pin.h"

/* As in linux/fs.h, if that is not older. */
struct query {
	uint64_t size, flags, address;
	uint64_t begins, ends, mode, page_size, offset, inode;
	uint32_t device_major, device_minor, name_size, build_id_size;
	uint64_t name, build_id;
};

#define QUERY _IOWR('f', 17, struct query)
#define WRITABLE 0x02
#define SHARED 0x08

int maps_query(uintptr_t base, uintptr_t end)
{
	int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), result = 1;
	if (maps < 0)
		return -errno;
	while (result == 1 && base < end) {
		struct query query = {.size = sizeof(query), .address = base};
		if (ioctl(maps, QUERY, &query) == 0)
			result = (query.mode & (WRITABLE | SHARED)) == WRITABLE && query.inode == 0;
		else
			result = errno == ENOENT ? 0 : -errno;
		base = query.ends;
	}
	close(maps);
	return result;
}

bool maps_read(uintptr_t base, uintptr_t end)
{
	char line[256], mode[5];
	uintptr_t begins, ends;
	unsigned long inode;
	bool whole = true, good = true;
	FILE *maps = fopen("/proc/self/maps", "re");
	if (!maps)
		return false;
	while (good && base < end && fgets(line, sizeof(line), maps)) {
		bool first = whole;
		whole = strchr(line, '\n'); /* else the rest of a long name follows */
		if (!first)
			continue;
		good = sscanf(line, "%lx-%lx %4s %*s %*s %lu", &begins, &ends, mode, &inode) == 4;
		if (!good || ends <= base)
			continue;
		good = begins <= base && mode[1] == 'w' && mode[3] == 'p' && inode == 0;
		base = ends;
	}
	fclose(maps);
	return good && base >= end;
}

bool maps_anonymous(uintptr_t base, uintptr_t end)
{
	int known = maps_query(base, end);
	return known < 0 ? maps_read(base, end) : known;
}
