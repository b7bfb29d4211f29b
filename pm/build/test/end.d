build/test/end: test/end.c test/pair.h include/pm.h test/test.h
test/pair.h:
include/pm.h:
test/test.h:
