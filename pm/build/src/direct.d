build/src/direct.o: src/direct.c src/internal.h include/pm.h src/ring.h \
 src/shared.h
src/internal.h:
include/pm.h:
src/ring.h:
src/shared.h:
