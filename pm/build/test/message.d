build/test/message: test/message.c test/pair.h include/pm.h test/test.h
test/pair.h:
include/pm.h:
test/test.h:
