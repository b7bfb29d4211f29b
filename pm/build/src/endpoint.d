build/src/endpoint.o: src/endpoint.c src/message.h src/internal.h \
 include/pm.h src/ring.h src/shared.h
src/message.h:
src/internal.h:
include/pm.h:
src/ring.h:
src/shared.h:
