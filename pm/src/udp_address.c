/* udp_address.c - where the udp rail finds an endpoint: an IP address, which a guest keeps wherever it runs, and a port. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "udp.h"

/* In an address: 16 bytes of IPv6 (IPv4 is mapped into it), 2 of port. */
#define IP_AT 24
#define PORT_AT 40
#define IP_UDP_HEADERS 48
#define LEAST_MTU 576
#define MOST_PACKET 65507

static bool usable(const struct ifaddrs *each, const char *interface)
{
	bool meant = interface ? !strcmp(each->ifa_name, interface) : each->ifa_flags & IFF_UP && !(each->ifa_flags & IFF_LOOPBACK);
	if (!each->ifa_addr || !meant)
		return false;
	if (each->ifa_addr->sa_family == AF_INET)
		return true;
	return each->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)each->ifa_addr)->sin6_addr);
}

socklen_t udp_address_length(const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

int udp_address_parse(const char *text, struct sockaddr_storage *address)
{
	memset(address, 0, sizeof(*address));
	address->ss_family = strchr(text, ':') ? AF_INET6 : AF_INET;
	void *place = address->ss_family == AF_INET ? (void *)&((struct sockaddr_in *)address)->sin_addr
						    : (void *)&((struct sockaddr_in6 *)address)->sin6_addr;
	return inet_pton(address->ss_family, text, place) == 1 ? 0 : -EINVAL;
}

/* Whether $PM_ADDRESS is something else than an IP address. */
bool udp_address_bad(void)
{
	struct sockaddr_storage address;
	const char *given = getenv("PM_ADDRESS");
	return given && udp_address_parse(given, &address);
}

/* The first address, IPv4 before IPv6, of an interface, or of any that is up and not the loopback. */
int udp_address_of(const char *interface, struct sockaddr_storage *address)
{
	struct ifaddrs *all, *best = NULL;
	if (getifaddrs(&all))
		return -errno;
	for (struct ifaddrs *each = all; each; each = each->ifa_next)
		if (usable(each, interface) && (!best || best->ifa_addr->sa_family > each->ifa_addr->sa_family)) /* AF_INET is less */
			best = each;
	memset(address, 0, sizeof(*address));
	address->ss_family = best ? best->ifa_addr->sa_family : AF_UNSPEC;
	if (best)
		memcpy(address, best->ifa_addr, udp_address_length(address));
	freeifaddrs(all);
	return best ? 0 : -EADDRNOTAVAIL;
}

/* The address by which others reach this process: the first of $PM_LINKS, else $PM_ADDRESS, else the first there is. */
int udp_address_own(const struct pm_context *context, struct sockaddr_storage *address, socklen_t *length)
{
	const char *given = getenv("PM_ADDRESS");
	int error = 0;
	if (context->links)
		*address = context->links->own->address;
	else
		error = given ? udp_address_parse(given, address) : udp_address_of(NULL, address);
	*length = error ? 0 : udp_address_length(address);
	return error;
}

void udp_address_put(struct pm_address *address, const struct sockaddr_storage *from)
{
	uint16_t port;
	if (from->ss_family == AF_INET) {
		const struct sockaddr_in *ip = (const struct sockaddr_in *)from;
		memset(address->bytes + IP_AT + 10, 0xff, 2);
		memcpy(address->bytes + IP_AT + 12, &ip->sin_addr, 4);
		port = ip->sin_port;
	} else {
		const struct sockaddr_in6 *ip = (const struct sockaddr_in6 *)from;
		memcpy(address->bytes + IP_AT, &ip->sin6_addr, 16);
		port = ip->sin6_port;
	}
	memcpy(address->bytes + PORT_AT, &port, 2);
}

/* False: the address names no way by IP. */
bool udp_address_get(const struct pm_address *address, struct sockaddr_storage *to, socklen_t *length)
{
	uint16_t port;
	struct in6_addr ip;
	memcpy(&port, address->bytes + PORT_AT, 2);
	memcpy(&ip, address->bytes + IP_AT, 16);
	memset(to, 0, sizeof(*to));
	if (IN6_IS_ADDR_V4MAPPED(&ip)) {
		struct sockaddr_in *four = (struct sockaddr_in *)to;
		four->sin_family = AF_INET;
		four->sin_port = port;
		memcpy(&four->sin_addr, address->bytes + IP_AT + 12, 4);
	} else {
		struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;
		six->sin6_family = AF_INET6;
		six->sin6_port = port;
		six->sin6_addr = ip;
	}
	*length = udp_address_length(to);
	return port != 0;
}

/* The IP address alone, as it is in an address. */
void udp_address_ip(const struct pm_address *address, uint8_t ip[UDP_IP])
{
	memcpy(ip, address->bytes + IP_AT, UDP_IP);
}

void udp_address_set_ip(struct pm_address *address, const uint8_t ip[UDP_IP])
{
	memcpy(address->bytes + IP_AT, ip, UDP_IP);
}

bool udp_address_same_host(const struct pm_address *one, const struct pm_address *other)
{
	return !memcmp(one->bytes + IP_AT, other->bytes + IP_AT, PORT_AT - IP_AT);
}

/* Bytes that a packet to there may have on its way, with its IP header; 0: there is no way just now. */
static int mtu_to(const struct udp_path *path)
{
	int mtu = 0, probe = socket(path->to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(mtu);
	bool four = path->to.ss_family == AF_INET;
	if (probe >= 0) {
		if (connect(probe, (const struct sockaddr *)&path->to, path->to_length) ||
		    getsockopt(probe, four ? IPPROTO_IP : IPPROTO_IPV6, four ? IP_MTU : IPV6_MTU, &mtu, &size))
			mtu = 0;
		close(probe);
	}
	return mtu && mtu < LEAST_MTU ? LEAST_MTU : mtu;
}

/* Bytes of stream that fit into a packet on each of these paths, whole frames' headers aligned: what was lost on one may
 * be sent again on another. */
uint32_t udp_segment_size(const struct udp_path *paths, unsigned count, uint32_t unknown)
{
	int packet = MOST_PACKET;
	bool known = false;
	for (unsigned i = 0; i < count; i++) {
		int mtu = mtu_to(&paths[i]);
		if (mtu && mtu - IP_UDP_HEADERS < packet)
			packet = mtu - IP_UDP_HEADERS;
		known |= mtu != 0;
	}
	return known ? (packet - sizeof(struct udp_packet)) & ~7u : unknown;
}
