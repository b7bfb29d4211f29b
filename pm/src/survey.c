/* survey.c - which endpoints this user's processes have on this machine, root sees everybody's, and what they have done. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

/* Processes that do not answer within so many milliseconds, because they are stopped for instance, are left out. */
#define PATIENCE_MS 1000
/* So many are asked before their answers are taken: each has a socket open until then. */
#define ASKED_AT_ONCE 256

/* A context that has been asked for its page. */
struct asked {
	int fd;
	pid_t pid;
};

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
static int ask(const uint8_t id[CONTEXT_ID_SIZE], struct asked *asked)
{
	struct hello hello = {.magic = HELLO_MAGIC, .kind = HELLO_SURVEY};
	asked->fd = socket_connect(id);
	if (asked->fd < 0)
		return asked->fd;
	int error = socket_subject(asked->fd, &asked->pid);
	if (!error)
		error = socket_send(asked->fd, &hello, sizeof(hello), NULL, 0);
	if (error)
		close(asked->fd);
	return error;
}

/* Takes the page, which is waited for until then; 0, or -errno. Closes the socket. */
static int take_page(const struct asked *asked, uint64_t until_ns, const struct shared_page **page)
{
	struct pollfd answer = {.fd = asked->fd, .events = POLLIN};
	struct welcome welcome;
	void *memory;
	int given = -1, error = 0;
	uint64_t now_ns = clock_ns();
	if (poll(&answer, 1, now_ns < until_ns ? (until_ns - now_ns) / 1000000 + 1 : 0) != 1)
		error = -ETIMEDOUT;
	else if (socket_receive(asked->fd, &welcome, sizeof(welcome), &given, 1) != 1)
		error = -EPROTO;
	close(asked->fd);
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

/* The id of the context of which a line of /proc/net/unix tells, if it does. */
static bool find_id(char *line, uint8_t id[CONTEXT_ID_SIZE])
{
	static const char prefix[] = "@" SOCKET_PREFIX;
	unsigned long flags = 0;
	char *name = strstr(line, prefix);
	/* Flags (the fourth field) have __SO_ACCEPTCON of the one socket that listens. */
	if (!name || sscanf(line, "%*s %*s %*s %lx", &flags) != 1 || !(flags & 0x10000))
		return false;
	name[strcspn(name, "\n")] = 0;
	return !hex_parse(name + strlen(prefix), id, CONTEXT_ID_SIZE);
}

/* Asks the next contexts that the file tells of; how many. */
static int ask_some(FILE *sockets, struct asked some[ASKED_AT_ONCE])
{
	char *line = NULL;
	size_t room = 0;
	int count = 0;
	while (count < ASKED_AT_ONCE && getline(&line, &room, sockets) > 0) {
		uint8_t id[CONTEXT_ID_SIZE];
		count += find_id(line, id) && !ask(id, &some[count]);
	}
	free(line);
	return count;
}

/* Tells of those that answer; what the caller's function has returned last. */
static int tell_of_some(const struct asked *some, int count, int (*each)(const struct pm_survey_entry *, void *), void *argument)
{
	uint64_t until_ns = clock_ns() + PATIENCE_MS * 1000000ull;
	int stop = 0;
	for (int i = 0; i < count; i++) {
		const struct shared_page *page;
		if (stop) {
			close(some[i].fd);
		} else if (!take_page(&some[i], until_ns, &page)) {
			stop = tell(some[i].pid, page, each, argument);
			munmap((void *)page, sizeof(*page));
		}
	}
	return stop;
}

EXPORT int pm_survey(int (*each)(const struct pm_survey_entry *entry, void *argument), void *argument)
{
	FILE *sockets = fopen("/proc/net/unix", "re");
	struct asked some[ASKED_AT_ONCE];
	int stop = 0, count;
	if (!sockets)
		return -errno;
	while (!stop && (count = ask_some(sockets, some)))
		stop = tell_of_some(some, count, each, argument);
	fclose(sockets);
	return stop;
}
