build/test/wait: test/wait.c test/pair.h include/pm.h test/test.h
test/pair.h:
include/pm.h:
test/test.h:
