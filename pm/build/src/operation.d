build/src/operation.o: src/operation.c src/internal.h include/pm.h \
 src/ring.h src/shared.h
src/internal.h:
include/pm.h:
src/ring.h:
src/shared.h:
