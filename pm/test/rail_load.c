/*
 * rail_load.c - rails are left and joined again and again, and endpoints put aside and taken up, under full load: nothing
 * is lost, doubled or out of order, and remote accesses end well.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "rail_side.h"

/* One is put aside before the other, which may be in the midst of leaving a ring of it. */
static void rest(const struct pm_address addresses[2], int first)
{
	CHECK_IS(pm_order_save(&addresses[first], SOON), 0);
	CHECK_IS(pm_order_save(&addresses[!first], SOON), 0);
	CHECK_IS(pm_order_restore(&addresses[first], SOON), 0);
	CHECK_IS(pm_order_restore(&addresses[!first], SOON), 0);
}

/* Gives orders to both processes until told to stop. */
static void order_about(const struct pm_address addresses[2], _Atomic bool *stop)
{
	for (int i = 0; !atomic_load(stop); i++) {
		CHECK_IS(pm_order_leave(&addresses[i % 3 == 1], rail_name, SOON), 0);
		usleep(i * 37 % 3000);
		if (i % 16 == 6)
			rest(addresses, i / 16 % 2);
		if (i % 5 == 0)
			CHECK_IS(pm_order_leave(&addresses[i % 3 != 1], rail_name, SOON), 0);
		CHECK_IS(pm_order_join(&addresses[0], rail_name, SOON), 0);
		CHECK_IS(pm_order_join(&addresses[1], rail_name, SOON), 0);
		usleep(i * 53 % 10000);
	}
}

struct orders {
	struct pm_address addresses[2];
	_Atomic bool stop;
};

static void *give_orders(void *argument)
{
	struct orders *orders = argument;
	order_about(orders->addresses, &orders->stop);
	return NULL;
}

static _Atomic bool *enough_seen; /* by each side */

/* Under a sanitizer, and on a busy machine, everything takes longer: until both have seen enough. */
static bool enough(const struct side *side, const struct access *access)
{
	if (statistics_of(side).switches > 10 && access->rounds > 10)
		atomic_store(&enough_seen[side->number], true);
	return atomic_load(&enough_seen[0]) && atomic_load(&enough_seen[1]);
}

static void under_load(struct side *side)
{
	struct stream stream = {0};
	struct access *access = calloc(1, sizeof(*access));
	struct pm_region *region;
	struct orders orders = {0};
	pthread_t thread;
	warm_up(side, &stream);
	CHECK_IS(pm_register(side->context, access->there, sizeof(access->there), PM_REMOTE_READ | PM_REMOTE_WRITE, &region), 0);
	uint64_t mine[2] = {(uintptr_t)access->there, pm_region_key(region)}, other[2];
	tell(side, mine, sizeof(mine));
	hear(side, other, sizeof(other));
	access->address = other[0];
	access->key = other[1];
	orders.addresses[0] = address_of(side->endpoint);
	pm_peer_address(side->peer, &orders.addresses[1]);
	if (side->number == 0)
		CHECK(!pthread_create(&thread, NULL, give_orders, &orders));
	for (double began = seconds(); seconds() < began + 2 || (seconds() < began + 60 && !enough(side, access));) {
		for (int i = 0; i < 10; i++)
			send_next(side, &stream);
		for (int i = 0; i < 12; i++)
			take_next(side, &stream);
		begin_access(side, access);
		go_on_accessing(side, access);
	}
	if (side->number == 0) {
		atomic_store(&orders.stop, true);
		pthread_join(thread, NULL);
	}
	end_all(side, &stream, access);
	struct pm_statistics statistics = statistics_of(side);
	printf("%llu messages, %llu writes, %llu switches\n", (unsigned long long)stream.received, (unsigned long long)access->rounds,
	       (unsigned long long)statistics.switches);
	CHECK(statistics.switches > 10);
	const struct pm_rail_statistics *ring = &statistics.rails[rail_number()];
	const struct pm_rail_statistics *udp = &statistics.rails[PM_RAIL_UDP];
	CHECK(ring->messages && udp->messages);
	CHECK_IS(ring->messages + udp->messages, (long long)statistics.messages_sent);
	CHECK_IS(ring->message_bytes + udp->message_bytes, (long long)statistics.message_bytes_sent);
	CHECK_IS(ring->accesses + udp->accesses, (long long)(statistics.writes + statistics.reads));
	CHECK_IS(ring->access_bytes + udp->access_bytes, (long long)(statistics.write_bytes + statistics.read_bytes));
	CHECK_IS(statistics.dropped, 0);
	CHECK(access->rounds > 10);
	meet(side);
	CHECK_IS(pm_deregister(region), 0);
	free(access);
}

static void over(const char *name, const struct pm_options *options)
{
	set_rails(name);
	atomic_store(&enough_seen[0], false);
	atomic_store(&enough_seen[1], false);
	pair_run(options, under_load);
}

int main(void)
{
	own_job();
	share_file(64 << 20);
	enough_seen = mmap(NULL, 2 * sizeof(*enough_seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(enough_seen != MAP_FAILED);
	over("shm", NULL);
	over("shm", &(struct pm_options){.size = sizeof(struct pm_options), .no_direct = 1});
	over("ivshmem", NULL);
	need_verbs();
	over("verbs", NULL);
	return 0;
}
