/* link.h - the ways to peers and from them: what is seldom done with them (link.c). */
#ifndef PM_LINK_H
#define PM_LINK_H

#include "internal.h"

/* An endpoint that is closed stays for what it has sent to arrive until so long after the last of it has, at least. */
#define LINGER_NS 2000000000ull

int link_want(struct pm_peer *peer);
struct outbound *link_outbound(struct pm_peer *peer, enum rail rail, uint32_t generation);
struct inbound *link_inbound(struct pm_peer *peer, enum rail rail, uint32_t generation);
bool link_connect(struct pm_peer *peer);
void link_wake_remote(struct outbound *outbound);
void link_unmap_inbound(struct pm_context *context, struct inbound *inbound);
void link_unmap_outbound(struct outbound *outbound);
int link_no_room(struct pm_peer *peer);
bool link_add_inbound(struct pm_endpoint *endpoint, struct inbound *inbound);
void link_free_inbound(struct pm_context *context, struct inbound *inbound);
void link_free_outbound(struct pm_peer *peer);
void link_news(struct pm_endpoint *endpoint);
void link_close_all(struct pm_endpoint *endpoint);
void link_ended(struct pm_peer *peer);
bool link_read_out(struct pm_peer *peer);
void peer_gone(struct pm_peer *peer, int status);

#endif
