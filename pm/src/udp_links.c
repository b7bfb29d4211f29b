/*
 * udp_links.c - the links by which this machine is reached, where there are several ($PM_LINKS), and the paths to a peer
 * that they make: the first one's is between the addresses in both endpoints' names, and so on in the order of both files.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "udp.h"

#define LONGEST_LINE 256

/* Cuts what stands around a word, and the comment behind it. */
static char *word_of(char *line)
{
	line[strcspn(line, "#\n")] = 0;
	line += strspn(line, " \t\r");
	for (size_t n = strlen(line); n && isspace((unsigned char)line[n - 1]); n--)
		line[n - 1] = 0;
	return line;
}

static int add_link(struct udp_links *links, const char *word)
{
	struct udp_own *own = &links->own[links->count];
	if (links->count == FLOW_PATHS)
		return -EINVAL;
	int error = udp_address_parse(word, &own->address);
	if (error && strlen(word) < sizeof(own->device)) {
		strcpy(own->device, word);
		error = udp_address_of(word, &own->address);
	}
	if (error || (links->count && own->address.ss_family != links->own->address.ss_family))
		return error ? error : -EINVAL;
	links->count++;
	return 0;
}

static int read_links(FILE *file, struct udp_links *links)
{
	char line[LONGEST_LINE];
	int error = 0;
	while (!error && fgets(line, sizeof(line), file)) {
		bool whole = strchr(line, '\n') || feof(file);
		char *word = word_of(line);
		error = !whole ? -EINVAL : *word ? add_link(links, word) : 0;
	}
	return error || links->count ? error : -EINVAL;
}

/* Reads the file that $PM_LINKS names, if it does. */
int udp_links_from_environment(struct pm_context *context)
{
	const char *name = getenv("PM_LINKS");
	FILE *file = name ? fopen(name, "re") : NULL;
	if (!file)
		return name ? -errno : 0;
	context->links = calloc(1, sizeof(*context->links));
	int error = context->links ? read_links(file, context->links) : -ENOMEM;
	fclose(file);
	return error;
}

/* Tells a peer of the links that are not in the endpoint's address. */
void udp_links_tell(const struct pm_context *context, struct udp_greeting *greeting)
{
	unsigned count = context->links ? context->links->count : 1;
	for (unsigned i = 1; i < count; i++) {
		struct pm_address each = {0};
		udp_address_put(&each, &context->links->own[i].address);
		udp_address_ip(&each, greeting->links[greeting->more++]);
	}
}

/* What goes by a path is to leave by this link. Where that cannot be had, the kernel chooses. */
void udp_links_bind(const struct pm_context *context, unsigned link, int fd)
{
	const struct udp_own *own = context->links ? &context->links->own[link] : NULL;
	if (!own)
		return;
	if (*own->device)
		setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, own->device, strlen(own->device));
	bind(fd, (const struct sockaddr *)&own->address, udp_address_length(&own->address));
}

/* Opens the paths to a peer beside the first; how many there are with it, or -ENOMEM. */
int udp_paths_open(struct udp_link *link, const struct udp_greeting *greeting)
{
	const struct pm_context *context = link->peer->endpoint->context;
	struct pm_address far = link->peer->address;
	unsigned own = context->links ? context->links->count : 1, count = greeting->more + 1 < own ? greeting->more + 1 : own;
	struct udp_path *paths = count > 1 ? calloc(count, sizeof(*paths)) : NULL;
	if (count == 1)
		return 1;
	if (!paths)
		return -ENOMEM;
	paths[0] = link->first;
	for (unsigned i = 1; i < count; i++) {
		udp_address_set_ip(&far, greeting->links[i - 1]);
		udp_address_get(&far, &paths[i].to, &paths[i].to_length);
		paths[i].fd = udp_open_sending(context, i, &paths[i]);
	}
	link->paths = paths;
	return (int)count;
}

/* Of so many; the first stays. */
void udp_paths_close(struct udp_link *link, unsigned count)
{
	for (unsigned i = 1; i < count; i++)
		if (link->paths[i].fd >= 0)
			close(link->paths[i].fd);
	if (link->paths != &link->first)
		free(link->paths);
	link->paths = &link->first;
}
