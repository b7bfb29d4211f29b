/*
 * udp.h - the udp rail: packets, and the connections of an endpoint. What is in the packets is in flow.h.
 *
 * A connection begins with greetings: each side tells the other, sealed with the job key (HMAC-SHA-512-256), its number
 * for the connection, the size of its rings and a nonce, until it has seen its own nonce in the other's greeting. From
 * both nonces and the job key each direction gets a secret, and every later packet carries a checksum (XXH3, 64 bits)
 * seeded with it: what is damaged, or comes from somebody without the key, is dropped. That is no encryption: who can
 * read the packets can read the messages. Where the network is not trusted, it is the network that has to encrypt
 * (between sites it does: WireGuard).
 */
#ifndef PM_UDP_H
#define PM_UDP_H

#include <netinet/in.h>

#include "flow.h"
#include "internal.h"

/* A packet's way is longer than a message's through memory, and so are the rings: times those of the shm rail. */
#define UDP_RING_TIMES 4

#define UDP_NONCE 16
#define UDP_SEAL 32
#define UDP_SECRET 32

/* Types of packets. */
enum {
	UDP_GREETING = 1,
	UDP_DATA = 2, /* a segment, and news */
	UDP_NEWS = 3, /* news with a bitmap */
	UDP_PING = 4, /* news, and please some in return */
	UDP_BYE = 5,  /* the sender is gone; sequence: number of segments it has sent */
};

struct udp_packet {
	uint64_t check;    /* of all that follows */
	uint32_t link;     /* the receiver's number for the connection */
	uint16_t type;
	uint16_t length;   /* of what follows the header */
	uint32_t sequence; /* DATA: of the segment; BYE: see there; NEWS: bits in the bitmap that follows */
	uint32_t offset;   /* DATA: of the segment in the stream */
	uint32_t next, consumed, echo_us; /* struct flow_news */
	uint32_t time_us;  /* the sender's clock */
};

struct udp_greeting {
	uint64_t check;    /* GREETING_MAGIC */
	uint32_t link;     /* GREETING_LINK */
	uint16_t type;
	uint16_t version;
	struct pm_address from, to;
	uint8_t nonce[UDP_NONCE], echo[UDP_NONCE]; /* own, and the other's or zeroes */
	uint32_t number;   /* of the connection, at the sender */
	uint32_t ring_bytes;
	uint8_t seal[UDP_SEAL];
};

#define GREETING_MAGIC 0x313069686d4d50ull /* "PMmhi01" */
#define GREETING_LINK UINT32_MAX
#define GREETING_VERSION 1

_Static_assert(sizeof(struct udp_packet) == 40, "no padding");
_Static_assert(sizeof(struct udp_greeting) == 184, "no padding");

struct udp_link {
	struct pm_peer *peer;
	struct flow flow;
	uint32_t number, far_number;
	bool open;                 /* the other's greeting has come */
	bool sure;                 /* and has echoed the own nonce */
	uint64_t asked_ns;         /* when the peer was last asked whether it is there */
	unsigned asks;             /* since it was heard */
	bool silent;               /* for longer than is waited */
	bool stray;                /* the peer has said goodbye, and all it had sent is here */
	bool goodbye;
	uint64_t goodbye_at;       /* segments it has sent before it went */
	uint8_t nonce[UDP_NONCE], far_nonce[UDP_NONCE];
	uint64_t seed_out, seed_in;
	struct sockaddr_storage to;
	socklen_t to_length;
	uint64_t heard_ns;         /* when something good came last */
	uint64_t greet_at_ns;      /* when to greet again */
	unsigned greetings;
};

/* All under the lock: while the owner does not come by, the keeper takes its place, but for what concerns peers. */
struct udp {
	pthread_mutex_t lock;
	int fd;
	struct udp_link **links;   /* by number */
	uint32_t count, room, at;
	uint64_t look_at_ns;       /* when some link wants attention, at the latest */
	unsigned long patience;    /* unanswered asks, one a second, after which a peer is given up */
	struct socket *packets;    /* the keeper's eye on fd */
	bool no_batches;           /* the kernel cuts no trains on this way */
	_Atomic uint64_t turns;    /* looks of the owner */
	uint64_t turns_seen;       /* by the keeper */
	bool more;                 /* the last search found a message: the owner's alone */
	unsigned quiet;            /* looks on end that found nothing */
	uint8_t *train;            /* room for what is received at once */
};

/* udp.c */
int udp_open(struct pm_endpoint *endpoint);
void udp_close(struct pm_endpoint *endpoint);
bool udp_elsewhere(const struct pm_peer *peer);
struct udp_link *udp_link_to(struct pm_peer *peer);
struct udp_link *udp_link_to_locked(struct pm_peer *peer);
int udp_reserve(struct pm_peer *peer, uint32_t length, void **buffer);
void udp_commit(struct pm_peer *peer, uint8_t kind, uint8_t type);
bool udp_find(struct pm_endpoint *endpoint, struct ring_message *found, struct udp_link **link);
void udp_take(struct udp_link *link, uint32_t length);
void udp_progress(struct pm_endpoint *endpoint);
bool udp_tick(struct pm_endpoint *endpoint);
bool udp_ready(struct pm_endpoint *endpoint);
int udp_wait_ms(struct pm_endpoint *endpoint);
bool udp_hear_of_rings(struct pm_endpoint *endpoint);
void udp_ended(struct pm_peer *peer);
void udp_wake(struct pm_peer *peer);
bool udp_quiet(struct pm_endpoint *endpoint);

/* udp_packet.c */
void udp_flush(struct udp *udp, struct udp_link *link, uint64_t now_ns, bool whole);
void udp_say(struct udp *udp, struct udp_link *link, uint64_t now_ns, uint16_t type);
void udp_refuse(struct pm_endpoint *endpoint, struct udp_link *link, const uint8_t *data, uint32_t length, uint64_t now_ns);
void udp_take_packet(struct pm_endpoint *endpoint, struct udp_link *link, const uint8_t *data, uint32_t length, uint64_t now_ns);

/* udp_greeting.c */
void udp_sure(struct udp_link *link);
void udp_greet(struct udp *udp, struct udp_link *link, uint64_t now_ns);
void udp_greeted(struct pm_endpoint *endpoint, const uint8_t *data, uint32_t length, uint64_t now_ns, bool owner);

/* udp_address.c */
bool udp_address_bad(void);
int udp_address_own(struct sockaddr_storage *address, socklen_t *length);
void udp_address_put(struct pm_address *address, const struct sockaddr_storage *from);
bool udp_address_get(const struct pm_address *address, struct sockaddr_storage *to, socklen_t *length);
bool udp_address_same_host(const struct pm_address *one, const struct pm_address *other);
uint32_t udp_segment_size(const struct sockaddr_storage *to, socklen_t length);

#endif
