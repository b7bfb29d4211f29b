/*
 * udp_paths.c - messages and remote accesses go by several paths to a peer; all arrives when one of them loses everything
 * for a while, whichever, and that one is used again. Between ends with several links and one there is one path.
 */
#include "wire.h"

#define LONG 2000000
#define PATHS 3

/* Packets sent by each path, and which of them loses all. */
static _Atomic unsigned sent[FLOW_PATHS];
static _Atomic int dead;

static bool lose(const struct udp_packet *packet, size_t length)
{
	(void)length;
	if (packet->type == UDP_GREETING)
		return true;
	CHECK(packet->path < PATHS);
	atomic_fetch_add(&sent[packet->path], 1);
	return packet->path != atomic_load(&dead);
}

static void begin(void)
{
	for (int i = 0; i < FLOW_PATHS; i++)
		sent[i] = 0;
	dead = -1;
	wire = lose;
}

static const char *links_file(const char *text)
{
	static char name[] = "/tmp/pm-test-links-XXXXXX";
	strcpy(name + sizeof(name) - 7, "XXXXXX");
	int fd = mkstemp(name);
	CHECK(fd >= 0);
	CHECK_IS(write(fd, text, strlen(text)), (long long)strlen(text));
	close(fd);
	return name;
}

/* Opens a context as where that is the file of links; its error. */
static int open_with(const char *text, struct pm_context **context)
{
	const char *name = links_file(text);
	setenv("PM_LINKS", name, 1);
	int error = pm_context_open(NULL, context);
	unsetenv("PM_LINKS");
	unlink(name);
	return error;
}

static void bad_files(void)
{
	static const char *const bad[] = {
		"", "# nothing\n\n", "127.0.0.1\n300.0.0.1\n", "127.0.0.1 127.0.0.2\n", "127.0.0.1\n::1\n", "127.0.0.1\nno-such0\n",
		"lo\nlo\nlo\nlo\nlo\nlo\nlo\nlo\nlo\n", "an-interface-whose-name-is-too-long\n",
	};
	char wide[400];
	struct pm_context *context;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK_IS(open_with(bad[i], &context), strstr(bad[i], "no-such") || strstr(bad[i], "300") ? -EADDRNOTAVAIL : -EINVAL);
	memset(wide, ' ', sizeof(wide));
	strcpy(wide + sizeof(wide) - 12, "127.0.0.1\n");
	CHECK_IS(open_with(wide, &context), -EINVAL);
	setenv("PM_LINKS", "/nowhere/links", 1);
	CHECK_IS(pm_context_open(NULL, &context), -ENOENT);
	unsetenv("PM_LINKS");
	CHECK_IS(open_with("\n # one\n\t127.0.0.1\t# the first\n127.0.0.2#\r\nlo", &context), 0);
	CHECK_IS(pm_context_close(context), 0);
}

/* Opens this side with these links, and finds the other. */
static void reopen(struct side *side, const char *links)
{
	const char *name = links_file(links);
	setenv("PM_LINKS", name, 1);
	CHECK_IS(pm_context_close(side->context), 0);
	side_open(side, NULL);
	unsetenv("PM_LINKS");
	unlink(name);
}

static void write_long(struct side *side, const uint8_t *data, uint64_t to, uint64_t key)
{
	struct pm_event event = {0};
	CHECK_IS(pm_write(side->peer, data, LONG, to, key, NULL), 0);
	UNTIL(side, pm_next_event(side->endpoint, &event) > 0);
	CHECK_IS(event.type, PM_WRITE_DONE);
	CHECK_IS(event.status, 0);
}

static uint64_t set_aside(struct side *side)
{
	struct pm_statistics statistics;
	pm_statistics(side->endpoint, &statistics);
	return statistics.paths_set_aside;
}

/* Writes until so many more packets have gone by a path. */
static void use(struct side *side, int path, const uint8_t *data, const uint64_t place[2])
{
	unsigned before = sent[path];
	for (double until = seconds() + 60; sent[path] - before < 30;) {
		CHECK(seconds() < until);
		write_long(side, data, place[0], place[1]);
	}
}

/* Each path fails and comes back while side 0 writes to the other's memory, again and again. */
static void fail_and_come_back(struct side *side, uint8_t *data, uint64_t place[2])
{
	for (int i = 0; i < PATHS; i++)
		use(side, i, data, place);
	for (int i = 0; i < PATHS; i++) {
		uint64_t aside = set_aside(side);
		atomic_store(&dead, i);
		for (double until = seconds() + 60; set_aside(side) == aside;) {
			CHECK(seconds() < until);
			write_long(side, data, place[0], place[1]);
		}
		atomic_store(&dead, -1);
		use(side, i, data, place);
	}
}

static void several(struct side *side)
{
	static uint8_t data[LONG];
	struct pm_region *region;
	uint64_t place[2];
	reopen(side, "127.0.0.1\n127.0.0.2\n127.0.0.3\n");
	begin();
	if (side->number == 0) {
		for (int i = 0; i < LONG; i++)
			data[i] = (uint8_t)(i * 7 + (i >> 9));
		hear(side, place, sizeof(place));
		fail_and_come_back(side, data, place);
		send_surely(side, 0, "done", 5);
		return;
	}
	CHECK_IS(pm_register(side->context, data, sizeof(data), PM_REMOTE_WRITE, &region), 0);
	place[0] = (uintptr_t)data;
	place[1] = pm_region_key(region);
	tell(side, place, sizeof(place));
	take_all(side, 1);
	for (int i = 0; i < LONG; i++)
		CHECK_IS(data[i], (uint8_t)(i * 7 + (i >> 9)));
}

/* The one has two links, the other one. */
static void fewer(struct side *side)
{
	static uint8_t data[PM_MAX_MESSAGE];
	reopen(side, side->number ? "127.0.0.1\n127.0.0.2\n" : "127.0.0.3\n");
	begin();
	for (int i = 0; i < 200; i++) {
		if (side->number == 0)
			send_surely(side, 0, data, sizeof(data));
		else
			take_all(side, 1);
	}
	CHECK(sent[0] > 0);
	CHECK_IS(sent[1], 0);
}

int main(void)
{
	wire_begin("60");
	bad_files();
	pair_run(NULL, several);
	pair_run(NULL, fewer);
	return 0;
}
