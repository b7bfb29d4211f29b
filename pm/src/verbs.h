/* verbs.h - the verbs rail: InfiniBand, RoCE and what else libibverbs knows (verbs.c). */
#ifndef PM_VERBS_H
#define PM_VERBS_H

#include "internal.h"

/* Remote accesses of more bytes go from and to where they belong; those of fewer by messages. */
#define VERBS_BULK_LEAST 2048

/* Where a queue pair is. */
struct verbs_where {
	uint32_t queue_pair, sequence; /* numbers: its own, and that of its first packet */
	uint16_t lid;
	uint8_t mtu;                   /* enum ibv_mtu */
	uint8_t zero[5];
	uint8_t gid[16];
};

/* What a writer says who would like to have a ring. */
struct verbs_wanted {
	uint32_t generation, rail;
	struct verbs_where where;
};

/* What its reader offers: the ring's memory. */
struct verbs_offer {
	uint32_t generation, rail;
	struct verbs_where where;
	uint32_t key, data_bytes;
	uint64_t address;
};

/* verbs_device.c */
bool verbs_options_bad(void);
bool verbs_usable(struct pm_context *context);
void verbs_close(struct pm_context *context);
void verbs_region_gone(struct pm_region *region);

/* verbs.c */
bool verbs_ask(struct pm_peer *peer, struct verbs_wanted *wanted);
struct inbound *verbs_make(struct pm_peer *peer, const struct verbs_wanted *wanted, struct verbs_offer *offer);
bool verbs_take(struct pm_peer *peer, const struct verbs_offer *offer);
void verbs_let_go(struct verbs_ring *ring);
void verbs_endpoint_close(struct pm_endpoint *endpoint);

/* verbs_turn.c */
void verbs_post(struct outbound *outbound);
bool verbs_look(struct pm_endpoint *endpoint);
int verbs_descriptor(const struct pm_endpoint *endpoint);
void verbs_arm(struct pm_endpoint *endpoint);
void verbs_woken(struct pm_endpoint *endpoint);
bool verbs_quiet(struct pm_endpoint *endpoint);
bool verbs_confirm(struct pm_endpoint *endpoint);
void verbs_linger(struct pm_endpoint *endpoint);

/* verbs_access.c */
void verbs_handle(struct pm_peer *peer, const struct ring_message *message, bool by_ring);
int verbs_write(struct operation *operation);
int verbs_answer_region(struct service *service);
struct read_request;
void verbs_expect(struct operation *operation, struct read_request *request);
bool verbs_answers(const struct service *service);
int verbs_answer(struct service *service);
void verbs_forget(struct operation *operation, bool failed);

#endif
