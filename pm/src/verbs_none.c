/* verbs_none.c - the verbs rail of a library that was built where the headers of libibverbs are not: there is none. */
#include <errno.h>

#include "verbs.h"

bool verbs_options_bad(void)
{
	return false;
}

bool verbs_usable(struct pm_context *context)
{
	atomic_fetch_and(&context->rails, ~(1u << RAIL_VERBS));
	return false;
}

void verbs_handle(struct pm_peer *peer, const struct ring_message *message, bool by_ring)
{
	(void)message;
	(void)by_ring;
	count_both(&peer->endpoint->statistics->dropped, 1);
}

bool verbs_answers(const struct service *service)
{
	(void)service;
	return false;
}

bool verbs_confirm(struct pm_endpoint *endpoint)
{
	(void)endpoint;
	return true;
}

bool verbs_quiet(struct pm_endpoint *endpoint)
{
	(void)endpoint;
	return true;
}

int verbs_descriptor(const struct pm_endpoint *endpoint)
{
	(void)endpoint;
	return -1;
}

/* There is nothing to be closed, forgotten or waited for. */
#define NOTHING(name, ...) void name(__VA_ARGS__) {}
#pragma GCC diagnostic ignored "-Wunused-parameter"
NOTHING(verbs_close, struct pm_context *context)
NOTHING(verbs_region_gone, struct pm_region *region)
NOTHING(verbs_endpoint_close, struct pm_endpoint *endpoint)
NOTHING(verbs_linger, struct pm_endpoint *endpoint)
NOTHING(verbs_expect, struct operation *operation, struct read_request *request)
NOTHING(verbs_forget, struct operation *operation, bool failed)

/* As no ring is ever made, these are not called. */
#define NEVER_CALLED(type, name, ...) type name(__VA_ARGS__) { __builtin_unreachable(); }
NEVER_CALLED(bool, verbs_ask, struct pm_peer *peer, struct verbs_wanted *wanted)
NEVER_CALLED(struct inbound *, verbs_make, struct pm_peer *peer, const struct verbs_wanted *wanted, struct verbs_offer *offer)
NEVER_CALLED(bool, verbs_look, struct pm_endpoint *endpoint)
NEVER_CALLED(void, verbs_arm, struct pm_endpoint *endpoint)
NEVER_CALLED(int, verbs_write, struct operation *operation)
NEVER_CALLED(int, verbs_answer_region, struct service *service)
NEVER_CALLED(int, verbs_answer, struct service *service)
NEVER_CALLED(void, verbs_let_go, struct verbs_ring *ring)
NEVER_CALLED(void, verbs_post, struct outbound *outbound)
NEVER_CALLED(void, verbs_woken, struct pm_endpoint *endpoint)

/* A ring that was offered unasked. */
bool verbs_take(struct pm_peer *peer, const struct verbs_offer *offer)
{
	(void)peer;
	(void)offer;
	return false;
}
