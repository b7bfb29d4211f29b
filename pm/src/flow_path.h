/*
 * flow_path.h - one way to a peer: what is known of it, and how much is on it. A connection (flow.h) has one or several.
 *
 * Each path has a congestion window, a round trip and a count of transmissions of its own, for packets of different
 * paths overtake each other: only what was sent later by the same path tells that something is lost. Segments go by the
 * quickest path that has room; one that is slower is used if it is quicker than to wait for room on the quickest, with all
 * that waits (as ECF, CoNEXT 2017, does). That is known of a path only while no long queue stands in it: where there are
 * several paths, the window of any but the quickest does not grow any more when the round trip has doubled.
 *
 * A path is set aside when nothing is heard on it for two timeouts, but meanwhile on another one. It is then asked
 * now and then whether it works, and used again when it answers. All paths but the first begin so. As the last one is
 * never set aside, and a path that answers comes back, nobody is given up by this. A path that is in use, but has nothing
 * on its way, is asked as well, for what was measured of it may be no longer true; three questions in vain set it aside,
 * too.
 */
#ifndef PM_FLOW_PATH_H
#define PM_FLOW_PATH_H

#include <stdbool.h>
#include <stdint.h>

/* Paths to a peer, at most: as many as there are bits in what says of each whether something is to be done. */
#define FLOW_PATHS 8
#define NEVER UINT64_MAX

struct flow_path {
	uint32_t on_its_way;         /* segments */
	uint32_t round_lost;         /* segments that were lost in this round trip */
	uint64_t stamp;              /* transmissions so far */
	uint64_t stamp_acked;        /* the latest of which the arrival is known */
	uint64_t acked_sent_ns, acked_took_ns; /* when that was sent, and how long it was until its arrival was known */
	uint32_t acked_before;       /* segments that were on their way when it was sent */
	uint64_t acked_ns, gap_ns;   /* when something was acknowledged last, and how long nothing had been that might have */
	uint64_t recovery;           /* losses of transmissions before this one are of a known congestion */
	uint64_t round;              /* transmission with whose arrival the next round trip begins */
	double window, threshold;    /* segments */
	double rtt_us, rtt_deviation_us;
	double least_us, last_us;    /* round trip when nothing else was on the way, and the last one */
	bool probed;                 /* its last segment has been sent once more, and nothing was acknowledged since */
	bool aside;                  /* no segments are sent by it */
	unsigned timeouts;           /* on end, without news */
	unsigned unheard;            /* of these, since something came by it */
	unsigned asks;               /* that have not been answered */
	unsigned acked;              /* segments, by the news at hand */
	uint32_t echo_us;            /* time in the packet that came last */
	uint64_t sent_ns;            /* when something was sent last */
	uint64_t alarm_ns;           /* when something has to be sent again, NEVER: nothing awaited */
	uint64_t heard_ns;           /* when something came */
	uint64_t unheard_ns;         /* when nothing had come for the first timeout's time */
	uint64_t asked_ns;           /* when the first of these was */
	uint64_t ask_ns;             /* and when to ask again */
};

void flow_path_open(struct flow_path *path);
/* When something is sent again for the first time if nothing is acknowledged from now on; and how long it may then be, after
 * so many such times before, ns. */
uint64_t flow_path_probe_at(const struct flow_path *path, uint64_t now_ns);
uint64_t flow_path_timeout_ns(const struct flow_path *path, unsigned before);
/* Something has been acknowledged: what else is on its way is awaited from now on. */
void flow_path_acknowledged(struct flow_path *path, uint64_t now_ns);
/* What was sent so long ago, ns, is late when something later has arrived. */
uint64_t flow_path_late_ns(const struct flow_path *path);
void flow_path_measure(struct flow_path *path, uint64_t now_ns, uint32_t echo_us);
/* Whether more on its way would but wait in the network, and there is a quicker one. */
bool flow_path_is_full(const struct flow_path *paths, unsigned count, unsigned of);
/* Some more have arrived; the window is at most so large. */
void flow_path_grow(struct flow_path *path, unsigned acknowledged, uint32_t most_window);
/* One of that stamp is lost. */
void flow_path_shrink(struct flow_path *path, uint64_t stamp);
/* How many are not set aside. */
unsigned flow_path_used(const struct flow_path *paths, unsigned count);
/* The path for the next segment, while so many wait, -1: none has room. */
int flow_path_choose(const struct flow_path *paths, unsigned count, double waiting);
/* The quickest other one that is in use, else this one. */
unsigned flow_path_other(const struct flow_path *paths, unsigned count, unsigned path);
/* Something has come by it, that says when it was sent and when what came last the other way. It may be the answer to a
 * question: the path is used again then. */
void flow_path_heard(struct flow_path *path, uint64_t now_ns, uint32_t time_us, uint32_t echo_us);
/* Nothing of what is on a path has been acknowledged in time. False: it is to be set aside. */
bool flow_path_timed_out(struct flow_path *paths, unsigned count, unsigned timed_out, uint64_t now_ns);
/* Nor has it answered what it was asked in time. */
bool flow_path_unanswered(const struct flow_path *paths, unsigned count, unsigned asked, uint64_t now_ns);
void flow_path_set_aside(struct flow_path *path, uint64_t now_ns);
/* Timeouts on end of that path in use, with something on its way, that has had the fewest; UINT_MAX: there is none. */
unsigned flow_path_timeouts(const struct flow_path *paths, unsigned count);
/* Which ones are to be asked now whether they work, a bit each; and when, at the earliest. */
unsigned flow_path_ask(struct flow_path *paths, unsigned count, uint64_t now_ns);
uint64_t flow_path_ask_at(const struct flow_path *paths, unsigned count);

#endif
