/*
 * udp.h - the udp rail: packets, and the connections of an endpoint. What is in the packets is in flow.h.
 *
 * A connection begins with greetings: each side tells the other, sealed with the job key (HMAC-SHA-512-256), its number
 * for the connection, the size of its rings and a nonce, until it has seen its own nonce in the other's greeting. From
 * both nonces and the job key each direction gets a secret, and every later packet carries a checksum (XXH3, 64 bits)
 * keyed with it: what is damaged, or comes from somebody without the key, is dropped. That is no encryption: who can
 * read the packets can read the messages. Where the network is not trusted, it is the network that has to encrypt
 * (between sites it does: WireGuard).
 */
#ifndef PM_UDP_H
#define PM_UDP_H

#include <net/if.h>
#include <netinet/in.h>

#include "flow.h"
#include "hash.h"
#include "internal.h"

/* A packet's way is longer than a message's through memory, and so are the rings: times those of the shm rail. */
#define UDP_RING_TIMES 4

#define UDP_NONCE 16
#define UDP_SEAL 32
#define UDP_IP 16
/* Where nothing is known of the way, it is taken for one of 576 octets (RFC 791). */
#define UDP_LEAST_SEGMENT 488
/* The longest datagram, which may be a train of packets of one connection (UDP_GRO). */
#define UDP_TRAIN_BYTES 65536
/* Remote accesses of more bytes go as bulk. */
#define UDP_BULK_LEAST 2048

/* Types of packets. */
enum {
	UDP_GREETING = 1,
	UDP_DATA = 2, /* a segment, and news */
	UDP_NEWS = 3, /* news with a bitmap */
	UDP_PING = 4, /* news, and please some in return */
	UDP_BYE = 5,  /* the sender is gone; sequence: number of segments it has sent */
	UDP_READ = 6, /* a segment of the answer to a read */
	UDP_WRITE = 7, /* a segment of a write */
	UDP_EMPTY = 8, /* a segment of which the bytes were taken away */
};

struct udp_packet {
	uint64_t check;    /* of all that follows */
	uint32_t link;     /* the receiver's number for the connection */
	uint8_t type;
	uint8_t path;      /* by which it is sent */
	uint16_t length;   /* of what follows the header */
	uint32_t sequence; /* of a segment; BYE: see there; NEWS: bits in the bitmap that follows */
	uint32_t offset;   /* DATA: of the segment in the stream */
	uint32_t next, consumed, echo_us; /* struct flow_news */
	uint32_t time_us;  /* the sender's clock */
};

/* The header of a segment of bulk. */
struct udp_bulk {
	struct udp_packet packet;
	uint64_t name;     /* READ: id of the operation; WRITE: key of the region */
	uint64_t at;       /* READ: offset in the operation; WRITE: address */
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
	uint32_t socket_bytes; /* that may wait in the sender's socket */
	uint32_t more;     /* links of the sender beside the one in its address, and their IP addresses, as there */
	uint8_t links[FLOW_PATHS - 1][UDP_IP];
	uint8_t seal[UDP_SEAL];
};

#define GREETING_MAGIC 0x313069686d4d50ull /* "PMmhi01" */
#define GREETING_LINK UINT32_MAX
#define GREETING_VERSION 3

_Static_assert(sizeof(struct udp_packet) == 40, "no padding");
_Static_assert(sizeof(struct udp_bulk) == sizeof(struct udp_packet) + FLOW_BULK_HEADER, "no padding");
_Static_assert(sizeof(struct udp_greeting) == 304, "no padding");

/* Greetings of strangers, so many of which may wait for the owner. */
#define UDP_STRANGERS 8

/* A link of this machine. */
struct udp_own {
	struct sockaddr_storage address;
	char device[IFNAMSIZ];     /* that it was named by, or nothing */
};

struct udp_links {
	unsigned count;
	struct udp_own own[FLOW_PATHS];
};

/* A path to a peer. */
struct udp_path {
	int fd;                    /* a socket that is connected to the peer, to send by; -1: the endpoint's serves */
	struct sockaddr_storage to;
	socklen_t to_length;
};

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
	uint8_t secret_out[HASH_SECRET], secret_in[HASH_SECRET];
	struct udp_path first, *paths; /* as many as the flow has; one at least */
	uint64_t looked_at;        /* up to where what has come has been looked through for what is said about rings */
	unsigned came_by;          /* the path by which something came last: news go back by it */
	uint32_t told_next, told_consumed; /* in the news that came last */
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
	bool no_trains;            /* the kernel cuts no trains on this way */
	_Atomic uint64_t turns;    /* looks of the owner */
	uint64_t turns_seen;       /* by the keeper */
	_Atomic bool woken_by_packets; /* the owner sleeps, for what is not in packets as well (udp_wake) */
	bool more;                 /* the last search found a message: the owner's alone */
	unsigned quiet;            /* looks on end that found nothing */
	uint32_t socket_bytes;     /* that may wait in the socket */
	unsigned many;             /* packets that are acknowledged while more are there */
	struct udp_link *came;     /* from whom something good came last */
	TAILQ_HEAD(, operation) placed; /* reads of which all has come: the owner is to end them */
	uint8_t *train, *train_out; /* room for what is received, and sent, at once */
	struct udp_greeting strangers[UDP_STRANGERS]; /* that the keeper has heard */
	unsigned stranger_count;
};

/* udp.c */
int udp_open(struct pm_endpoint *endpoint);
void udp_close(struct pm_endpoint *endpoint);
int udp_open_sending(const struct pm_context *context, unsigned link, const struct udp_path *path);
bool udp_elsewhere(const struct pm_peer *peer);
struct udp_link *udp_link_to(struct pm_peer *peer);
struct udp_link *udp_link_to_locked(struct pm_peer *peer);
int udp_reserve(struct pm_peer *peer, uint32_t length, void **buffer);
void udp_commit(struct pm_peer *peer, uint8_t kind, uint8_t type);
bool udp_receive(struct pm_endpoint *endpoint, bool look, struct ring_message *found, struct udp_link **link);
void udp_take(struct udp_link *link, uint32_t length);
bool udp_hear_of_rings(struct pm_endpoint *endpoint);
void udp_ended(struct pm_peer *peer);
void udp_wake(struct pm_peer *peer);
void udp_look_soon(struct pm_endpoint *endpoint);

/* udp_turn.c */
bool udp_look(struct pm_endpoint *endpoint);
void udp_progress(struct pm_endpoint *endpoint);
bool udp_tick(struct pm_endpoint *endpoint);
bool udp_ready(struct pm_endpoint *endpoint);
int udp_wait_ms(struct pm_endpoint *endpoint);
void udp_linger(struct pm_endpoint *endpoint);
bool udp_in_turn(const struct udp_link *link, const struct ring_message *found);
bool udp_quiet(struct pm_endpoint *endpoint);

/* udp_packet.c */
void udp_flush(struct udp *udp, struct udp_link *link, uint64_t now_ns, bool whole);
void udp_say(struct udp *udp, struct udp_link *link, uint64_t now_ns, uint8_t type);
void udp_say_by(struct udp *udp, struct udp_link *link, unsigned paths, uint64_t now_ns, uint8_t type);
unsigned udp_all_paths(const struct udp_link *link);
void udp_send(struct udp *udp, const struct udp_path *path, const void *packet, size_t length);
uint32_t udp_header_size(uint8_t type);
void udp_refuse(struct pm_endpoint *endpoint, struct udp_link *link, const uint8_t *data, uint32_t length, uint64_t now_ns);
void udp_take_packet(struct pm_endpoint *endpoint, struct udp_link *link, const uint8_t *data, uint32_t length, uint64_t now_ns);

/* udp_receive.c */
bool udp_take_packets(struct pm_endpoint *endpoint, uint64_t now_ns, bool owner);

/* udp_bulk.c */
void udp_expect(struct operation *operation);
void udp_forget(struct operation *operation);
void udp_end_placed(struct pm_endpoint *endpoint);
void udp_take_bulk(struct pm_endpoint *endpoint, struct udp_link *link, const struct udp_bulk *head, const uint8_t *payload,
		   uint64_t now_ns);
bool udp_write_numbered(struct operation *operation);
int udp_answer(struct service *service);
void udp_answer_forget(struct service *service);
void udp_region_gone(struct pm_context *context, uint64_t key);

/* udp_greeting.c */
void udp_sure(struct udp_link *link);
void udp_greet(struct udp *udp, struct udp_link *link, uint64_t now_ns);
void udp_greeted(struct pm_endpoint *endpoint, const uint8_t *data, uint32_t length, uint64_t now_ns, bool owner);
void udp_answer_strangers(struct pm_endpoint *endpoint, uint64_t now_ns);

/* udp_links.c */
int udp_links_from_environment(struct pm_context *context);
void udp_links_tell(const struct pm_context *context, struct udp_greeting *greeting);
void udp_links_bind(const struct pm_context *context, unsigned link, int fd);
int udp_paths_open(struct udp_link *link, const struct udp_greeting *greeting);
void udp_paths_close(struct udp_link *link, unsigned count);

/* udp_address.c */
bool udp_address_bad(void);
int udp_address_parse(const char *text, struct sockaddr_storage *address);
int udp_address_of(const char *interface, struct sockaddr_storage *address);
socklen_t udp_address_length(const struct sockaddr_storage *address);
void udp_address_ip(const struct pm_address *address, uint8_t ip[UDP_IP]);
void udp_address_set_ip(struct pm_address *address, const uint8_t ip[UDP_IP]);
int udp_address_own(const struct pm_context *context, struct sockaddr_storage *address, socklen_t *length);
void udp_address_put(struct pm_address *address, const struct sockaddr_storage *from);
bool udp_address_get(const struct pm_address *address, struct sockaddr_storage *to, socklen_t *length);
bool udp_address_same_host(const struct pm_address *one, const struct pm_address *other);
uint32_t udp_segment_size(const struct udp_path *paths, unsigned count, uint32_t unknown);

#endif
