build/test/remote: test/remote.c test/pair.h include/pm.h test/test.h
test/pair.h:
include/pm.h:
test/test.h:
