/* seize.c - an endpoint that is closed is not freed before the keeper, which has acted in its owner's stead, is out of it. */
#include "internal.h"
#include "test.h"

static struct pm_endpoint *endpoint;
static _Atomic bool closed;

static void *close_it(void *nothing)
{
	CHECK_IS(pm_endpoint_close(endpoint), 0);
	atomic_store(&closed, true);
	return nothing;
}

int main(void)
{
	struct pm_context *context;
	pthread_t owner;
	alarm(90);
	CHECK_IS(pm_context_open(NULL, &context), 0);
	CHECK_IS(pm_endpoint_open(context, &endpoint), 0);
	/* As the keeper is in endpoint_give_back, when the owner may come in again already. */
	CHECK_IS(pthread_mutex_lock(&endpoint->seat), 0);
	CHECK_IS(pthread_create(&owner, NULL, close_it, NULL), 0);
	usleep(300000);
	CHECK(!atomic_load(&closed));
	CHECK_IS(pthread_mutex_unlock(&endpoint->seat), 0);
	CHECK_IS(pthread_join(owner, NULL), 0);
	CHECK(atomic_load(&closed));
	CHECK_IS(pm_context_close(context), 0);
	return 0;
}
