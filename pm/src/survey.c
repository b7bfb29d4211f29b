/* survey.c - which endpoints this user's processes have on this machine, root sees everybody's, and what they have done. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

/* A process that does not answer within so many milliseconds, because it is stopped for instance, is left out. */
#define PATIENCE_MS 1000

/* Messages of shm are not counted for themselves, as that would cost each of them some instructions: they are what the
 * other rails leave of all. */
static void fill_in_shm(struct pm_statistics *statistics)
{
	uint64_t messages = 0, bytes = 0;
	for (unsigned i = 0; i < PM_RAILS_ROOM; i++) {
		messages += i == PM_RAIL_SHM ? 0 : statistics->rails[i].messages;
		bytes += i == PM_RAIL_SHM ? 0 : statistics->rails[i].message_bytes;
	}
	struct pm_rail_statistics *shm = &statistics->rails[PM_RAIL_SHM];
	/* Figures of different instants may seem to be more than all. */
	shm->messages = statistics->messages_sent > messages ? statistics->messages_sent - messages : 0;
	shm->message_bytes = statistics->message_bytes_sent > bytes ? statistics->message_bytes_sent - bytes : 0;
}

void statistics_copy(struct pm_statistics *to, const struct pm_statistics *from)
{
	_Static_assert(sizeof(*to) % sizeof(uint64_t) == 0, "counters only");
	for (size_t i = 0; i < sizeof(*to) / sizeof(uint64_t); i++)
		((uint64_t *)to)[i] = __atomic_load_n((const uint64_t *)from + i, __ATOMIC_RELAXED);
	fill_in_shm(to);
}

/* Asks a context for its page; 0, or -errno. */
static int ask(const uint8_t id[CONTEXT_ID_SIZE], pid_t *pid, const struct shared_page **page)
{
	struct hello hello = {.magic = HELLO_MAGIC, .kind = HELLO_SURVEY};
	struct welcome welcome;
	void *memory;
	int given = -1;
	int fd = socket_connect(id);
	if (fd < 0)
		return fd;
	int error = socket_subject(fd, pid);
	if (!error)
		error = socket_send(fd, &hello, sizeof(hello), NULL, 0);
	struct pollfd answer = {.fd = fd, .events = POLLIN};
	if (!error && poll(&answer, 1, PATIENCE_MS) != 1)
		error = -ETIMEDOUT;
	if (!error && socket_receive(fd, &welcome, sizeof(welcome), &given, 1) != 1)
		error = -EPROTO;
	close(fd);
	if (error)
		return error;
	error = memory_map(given, sizeof(struct shared_page), true, &memory);
	close(given);
	if (error)
		return error;
	*page = memory;
	if ((*page)->magic == SHARED_MAGIC && (*page)->version == SHARED_VERSION)
		return 0;
	munmap(memory, sizeof(struct shared_page));
	return -EPROTO;
}

static int tell(pid_t pid, const struct shared_page *page,
		int (*each)(const struct pm_survey_entry *, void *), void *argument)
{
	int stop = 0;
	for (uint32_t i = 0; i < SHARED_ENDPOINTS && !stop; i++) {
		struct pm_survey_entry entry = {.pid = pid};
		if (!atomic_load(&page->endpoints[i].serial))
			continue;
		entry.address = page->endpoints[i].address;
		statistics_copy(&entry.statistics, &page->endpoints[i].statistics);
		stop = each(&entry, argument);
	}
	return stop;
}

EXPORT int pm_survey(int (*each)(const struct pm_survey_entry *entry, void *argument), void *argument)
{
	static const char prefix[] = "@" SOCKET_PREFIX;
	FILE *sockets = fopen("/proc/net/unix", "re");
	char *line = NULL;
	size_t room = 0;
	int stop = 0;
	if (!sockets)
		return -errno;
	while (!stop && getline(&line, &room, sockets) > 0) {
		uint8_t id[CONTEXT_ID_SIZE];
		unsigned long flags = 0;
		char *name = strstr(line, prefix);
		/* Flags (the fourth field) have __SO_ACCEPTCON of the one socket that listens. */
		if (!name || sscanf(line, "%*s %*s %*s %lx", &flags) != 1 || !(flags & 0x10000))
			continue;
		name[strcspn(name, "\n")] = 0;
		if (hex_parse(name + strlen(prefix), id, sizeof(id)))
			continue;
		const struct shared_page *page;
		pid_t pid;
		if (ask(id, &pid, &page))
			continue;
		stop = tell(pid, page, each, argument);
		munmap((void *)page, sizeof(*page));
	}
	free(line);
	fclose(sockets);
	return stop;
}
