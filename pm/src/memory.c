/* memory.c - memory that is shared with other processes: anonymous files that cannot shrink under who maps them. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* Makes and maps size bytes of zeroes; the answer is the descriptor. With others_read_only, nobody who gets the
 * descriptor can map it for writing. */
int memory_make(const char *name, size_t size, bool others_read_only, void **memory)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, size))
		goto failed;
	*memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | (others_read_only ? 0 : MAP_POPULATE), fd, 0);
	if (*memory == MAP_FAILED)
		goto failed;
	if (others_read_only)
		seals |= F_SEAL_FUTURE_WRITE;
	if (fcntl(fd, F_ADD_SEALS, seals)) {
		int error = errno;
		munmap(*memory, size);
		close(fd);
		return -error;
	}
	return fd;
failed:;
	int error = errno;
	close(fd);
	return -error;
}

/* Maps memory that another process has made, after seeing to it that it is as large as it has to be and stays so. */
int memory_map(int fd, size_t size, bool read_only, void **memory)
{
	struct stat status;
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EPROTO;
	if (fstat(fd, &status))
		return -errno;
	if ((size_t)status.st_size < size)
		return -EPROTO;
	*memory = mmap(NULL, size, read_only ? PROT_READ : PROT_READ | PROT_WRITE,
		       MAP_SHARED | (read_only ? 0 : MAP_POPULATE), fd, 0);
	return *memory == MAP_FAILED ? -errno : 0;
}
