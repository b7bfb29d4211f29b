# perf.mk: pm-perf, the one tool that has several source files.
PERF_OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(wildcard tools/perf/*.c))
TOOLS += $(BUILD)/pm-perf

$(BUILD)/pm-perf: $(PERF_OBJECTS) $(BUILD)/libpm.a
	@echo "LD $(@F)"
	$(Q)$(CC) -pthread -o $@ $^ $(LIBS)

-include $(PERF_OBJECTS:.o=.d)
