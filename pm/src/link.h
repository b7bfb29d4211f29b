/* link.h - the ways to peers and from them: what is seldom done with them (link.c). */
#ifndef PM_LINK_H
#define PM_LINK_H

#include "internal.h"

struct outbound *link_want(struct pm_peer *peer);
int link_no_room(struct pm_peer *peer);
void link_news(struct pm_endpoint *endpoint);
void link_close_all(struct pm_endpoint *endpoint);
void peer_gone(struct pm_peer *peer, int status);

#endif
