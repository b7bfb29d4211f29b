/*
 * perf.h - what the parts of pm-perf have in common.
 *
 * Two processes take part: the client measures, the server does as it is ordered, by messages. Each has two
 * endpoints ("sides"): one that may move memory directly, one that must copy through the rings.
 */
#ifndef PERF_H
#define PERF_H

#include <pm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_SIZES 64

enum curve {
	CURVE_FLAG,           /* a flag in one shared cache line, without PM: what the hardware can do */
	CURVE_MEMCPY,         /* memcpy inside one process: the same for bandwidth */
	CURVE_MESSAGE,        /* messages, used by the receiver where they lie */
	CURVE_MESSAGE_COPIES, /* messages, copied out by the receiver */
	CURVE_WRITE,          /* remote write, up to its end */
	CURVE_READ,           /* remote read, up to its end */
	CURVE_WRITE_NO_DIRECT,
	CURVE_READ_NO_DIRECT,
	CURVE_WRITE_HITS_100, /* write, from memory of which so many of a hundred are found in the pin-down cache */
	CURVE_WRITE_HITS_50,
	CURVE_WRITE_HITS_0,
	CURVE_READ_HITS_100,
	CURVE_READ_HITS_50,
	CURVE_READ_HITS_0,
	CURVES
};

enum metric {
	METRIC_LATENCY,   /* us: half a round trip; for writes and reads one of them alone, from call to end */
	METRIC_BANDWIDTH, /* MB/s (10^6): many on their way at once */
	METRICS
};

extern const char *const curve_names[CURVES];
extern const char *const metric_names[METRICS];
extern const char *const metric_units[METRICS];
bool curve_has(enum curve curve, enum metric metric);
bool curve_writes(enum curve curve);
/* Of a hundred accesses, those of which the memory is to be found in the pin-down cache; -1: any number. */
int curve_hits(enum curve curve);
/* Messages have to fit the smallest one that carries a number; a flag has one size. */
bool curve_has_size(enum curve curve, size_t size);

struct settings {
	size_t sizes[MAX_SIZES];
	int size_count;
	bool curves[CURVES];
	bool chosen; /* the curves were named */
	bool metrics[METRICS];
	int repetitions;
	double batch_seconds; /* length of one measurement */
	int cpus[2];          /* of client and server, -1: not pinned */
	const char *csv, *plot;
};

extern bool give_way; /* the two share a CPU: whoever waits must yield it */

/* Ends the program with a message; of_errno as PM's functions return it, or 0. */
_Noreturn void fail(int of_errno, const char *format, ...) __attribute__((format(printf, 2, 3)));
double now(void); /* seconds */

/* raw.c: without PM */
struct flag_line; /* one cache line shared by two processes */
struct flag_line *flag_line_map(void);
double flag_round_trips(struct flag_line *line, long count); /* seconds */
void flag_answer(struct flag_line *line, long count);
double memory_copies(size_t size, long count);

/* link.c */
enum side_index {
	SIDE_DIRECT,
	SIDE_NO_DIRECT,
	SIDES
};

struct side {
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_peer *peer;
	struct pm_region *region;
	uint64_t remote_key; /* of the server's memory, at the client */
	uint32_t sequence_out, sequence_in;
};

struct pinned;

struct link {
	struct side sides[SIDES];
	struct pinned *pinned;   /* of the client: by size, what curves of hits need; pinned_count of them */
	int pinned_count;
	char *memory, *buffer;   /* of `largest` bytes each: remotely accessed, and local */
	size_t largest;
	uint64_t remote_address; /* of the server's memory, at the client */
	struct flag_line *line;  /* NULL between processes that share none */
};

enum kind {
	KIND_HELLO = 1,
	KIND_WELCOME,
	KIND_ORDER,
	KIND_READY,
	KIND_DATA,
	KIND_END, /* of a write or read measurement: the server need no longer attend to that side alone */
	KIND_BYE,
};

/* What the server shall do next, on the side that the order came by. */
struct order {
	uint32_t curve, metric;
	uint64_t size;
	int64_t count;
};

/* Ends the program, where a peer is the reason. */
_Noreturn void peer_fail(int result, const char *what);
void side_open(struct side *side, bool no_direct);
void side_close(struct side *side);
void side_find(struct side *side, const struct pm_address *address);
char *map_memory(size_t length);
void link_open(struct link *link, size_t largest);
void link_close(struct link *link);
void link_greet(struct link *link, const struct pm_address *server);
/* Waits for a client; sleeps meanwhile. */
void link_welcome(struct link *link);
void side_send(struct side *side, enum kind kind, const void *data, size_t length);
/* Takes a message if there is one, and looks now and then whether the other process is still there. */
bool side_poll(struct side *side, struct pm_message *message, unsigned *tries);
/* Waits for a message of that kind, copies it to data and releases it. */
void side_expect(struct side *side, enum kind kind, void *data, size_t length);
/* A transfer is as many messages as its size needs; each carries its number in its first four bytes. */
void transfer_send(struct side *side, char *buffer, size_t size);
void transfer_receive(struct side *side, size_t size, char *copy_to);

/* client.c, server.c */
/* Seconds; adds to *rails by which of them the client's messages and remote accesses went, as bits by enum pm_rail. */
double measure_batch(struct link *link, const struct order *order, unsigned *rails);
void client_verify(struct link *link);
/* Returns when the server has begun with it. */
void begin_order(struct side *side, const struct order *order);
void client_end(struct link *link);
/* Whether the curve's remote accesses did without copies; known after it was measured. */
bool client_was_direct(const struct link *link);
void serve(struct link *link);

/* access.c: remote accesses of the client */
#define WINDOW 16 /* on their way at once, for bandwidth */
/* The local memory of one access after another: a buffer used each time, or for some of them another, after a long time. */
struct rotation {
	char *same, *others;
	size_t stride, room; /* bytes from one of the others to the next, and of all */
	size_t at;           /* the next one */
	int same_percent;    /* 0, 50 or 100 */
	unsigned turn;
};
void access_once(struct side *side, bool write, char *local, size_t size, uint64_t address);
double access_batch(struct side *side, const struct order *order, struct rotation *rotation, uint64_t address); /* seconds */

/* pinned.c */
/* Makes ready for the curves of hits, or takes them out of the settings where no memory is pinned. */
void pinned_open(struct link *link, struct settings *settings, const struct pm_address *server);
void pinned_close(struct link *link);
bool pinned_has(const struct link *link, enum curve curve, size_t size);
/* Whose remote accesses of that size are measured. */
const struct side *pinned_side(const struct link *link, size_t size);
double pinned_batch(struct link *link, const struct order *order);
/* Of a hundred accesses, those that were hits. Ends the program where these are not those that the curve is of. */
double pinned_hits(const struct link *link, enum curve curve, size_t size);

/* output.c */
struct samples {
	double *values; /* in the order taken */
	int count;
	unsigned rails; /* that they went by: bits by enum pm_rail */
};
typedef struct samples sample_table[CURVES][MAX_SIZES][METRICS];
typedef double hit_table[CURVES][MAX_SIZES]; /* of a hundred; of curves of hits */
bool any_metric(sample_table samples, int curve, int size);
void print_table(const struct settings *settings, sample_table samples);
void write_csv(const struct settings *settings, sample_table samples, hit_table hits);
void check_plot(const char *path); /* before measuring: that it can be made at all */
void write_plot(const struct settings *settings, sample_table samples);

#endif
