##  make test-san   the suite under AddressSanitizer and UndefinedBehaviorSanitizer only
##  make test-tsan  sessions in many threads, under ThreadSanitizer
##  make test-unit  the cmocka programs and the checks of the command line only, without a sanitizer
##  make fuzz       each fuzz target for FUZZ_SECONDS (300), in build/fuzz
##  make soak-serve mixed load on a server for SOAK_SECONDS (3600): memory, blocks and answers stay as they were
##  make soak       one stream of SOAK_TOKENS (1000000): memory, speed and text stay as they were; a quarter of an hour

# ---- the test programs: tests/<folder>/test_x.c -> $(BUILD)/tests/<folder>/test_x -----------------------------------
TEST_SRC    := $(sort $(wildcard tests/*/test_*.c tests/*/*/test_*.c tests/*/*/*/test_*.c))
SUPPORT_SRC := $(filter-out $(TEST_SRC),$(sort $(wildcard tests/support/*.c tests/backend/*/*.c)))
TEST_OBJ    := $(TEST_SRC:%.c=$(BUILD)/obj/%.o)
SUPPORT_OBJ := $(SUPPORT_SRC:%.c=$(BUILD)/obj/%.o)
TEST_PROGRAMS := $(TEST_SRC:%.c=$(BUILD)/%)

TEST_DEPS := $(BUILD)/.test-deps-ok
$(TEST_DEPS): mk/deps.sh
	@mkdir -p $(@D)
	@bash mk/deps.sh test
	@touch $@

$(BUILD)/obj/tests/%.o: tests/%.c | $(TEST_DEPS)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) -Itests -c $< -o $@

# INSTEAD: objects that take the place of the library's.
$(TEST_PROGRAMS): $(BUILD)/%: $(BUILD)/obj/%.o $(SUPPORT_OBJ) $(LIB_STATIC)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(INSTEAD) $(filter-out $(INSTEAD),$^) -o $@ -lcmocka $(LIBS_ALL)

# The tests of kernels have one more instruction set: AMX in plain C, for machines that have none.
ifneq ($(AMX_EMULATED),)
EMULATED_ISA := $(BUILD)/obj/backend/cpu/host/isa.emulated.o $(AMX_SRC:src/backend/cpu/%.c=$(BUILD)/obj/backend/cpu/%.$(AMX_EMULATED).o)
$(BUILD)/obj/backend/cpu/host/isa.emulated.o: src/backend/cpu/host/isa.c | $(DEPS)
	@mkdir -p $(@D)
	$(call say,CC,$< (with $(AMX_EMULATED)))
	$(Q)$(CC) $(CFLAGS_ALL) $(ISA_WITHOUT) -DFB_AMX_EMULATED -c $< -o $@

$(filter $(BUILD)/tests/backend/cpu/%,$(TEST_PROGRAMS)): INSTEAD := $(EMULATED_ISA)
$(filter $(BUILD)/tests/backend/cpu/%,$(TEST_PROGRAMS)): $(EMULATED_ISA)
endif

# What is tested of the command line's own files.
$(BUILD)/tests/cli/test_nearest: $(BUILD)/obj/cli/nearest.o
$(BUILD)/tests/cli/test_busy: $(BUILD)/obj/cli/busy.o $(BUILD)/obj/cli/json_out.o

# ---- allocations that fail: in a program that preloads the library, and in one whose calls are wrapped --------------
FAIL_ALLOC := $(BUILD)/tests/oom/fail_alloc.so
$(FAIL_ALLOC): tests/oom/fail_alloc.c
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O1 -g $(WARN) -fno-optimize-sibling-calls -fPIC -shared -pthread $< -o $@

$(BUILD)/tests/oom/test_library: LDFLAGS_ALL += $(foreach name,malloc calloc realloc aligned_alloc strdup asprintf open_memstream free pthread_create,-Wl$(comma)--wrap=$(name))
$(BUILD)/tests/file/test_json_memory: LDFLAGS_ALL += $(foreach name,malloc calloc realloc aligned_alloc free,-Wl$(comma)--wrap=$(name))

# ---- digests of all logits under many options, to see that two builds compute the same bits ------------------------
DIGEST := $(BUILD)/tests/digest/digest
$(DIGEST): $(BUILD)/obj/tests/digest/digest.o $(BUILD)/obj/tests/support/cuda_library.o $(LIB_STATIC)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $^ -o $@ $(LIBS_ALL)

# ---- the time of a schema's masks -----------------------------------------------------------------------------------
SCHEMA_MASKS := $(BUILD)/bench/schema_masks
$(BUILD)/obj/bench/schema_masks.o: bench/schema_masks.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) -c $< -o $@

$(SCHEMA_MASKS): $(BUILD)/obj/bench/schema_masks.o $(LIB_STATIC)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $^ -o $@ $(LIBS_ALL)

# ---- the fuzz targets: tests/fuzz/fuzz_x.c -> build/fuzz/fuzz_x, with FUZZ=1 ----------------------------------------
FUZZ_SRC     := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_OBJ     := $(FUZZ_SRC:%.c=$(BUILD)/obj/%.o)
FUZZ_TARGETS := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/%)
FUZZ_SECONDS ?= 300

# Loaders only: no kernel is built for them.
FUZZ_LIB_OBJ := $(filter $(addprefix $(BUILD)/obj/,base/% file/% text/% schema/% chat/% arch/% program/% verify/golden.o verify/stream_golden.o),$(LIB_OBJ))

# Requests need a model besides.
$(BUILD)/fuzz_request: $(filter $(addprefix $(BUILD)/obj/model/,bind.o chat.o locate.o model.o schema.o tokenizer.o),$(LIB_OBJ)) \
    $(addprefix $(BUILD)/obj/,cli/json_out.o serve/job.o serve/params.o serve/pieces.o serve/prompt.o serve/schema.o)
$(FUZZ_TARGETS): $(BUILD)/%: $(BUILD)/obj/tests/fuzz/%.o $(FUZZ_LIB_OBJ)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -fsanitize=fuzzer $^ -o $@ $(LIBS_ALL)

-include $(EMULATED_ISA:.o=.d) $(TEST_OBJ:.o=.d) $(SUPPORT_OBJ:.o=.d) $(FUZZ_OBJ:.o=.d)

# ---- what a person calls: tests/run.sh builds what it runs, in the order of its arguments ---------------------------
.PHONY: test test-unit test-san test-tsan fuzz soak soak-serve tests fuzzers fmt lint
test: $(TEST_DEPS)
	+@MAKE="$(MAKE)" BUILD="$(BUILD)" bash tests/run.sh unit install fuzz san tsan lint

test-unit: $(TEST_DEPS)
	+@MAKE="$(MAKE)" BUILD="$(BUILD)" bash tests/run.sh unit

test-san: $(TEST_DEPS)
	+@MAKE="$(MAKE)" BUILD="$(BUILD)" bash tests/run.sh san

test-tsan: $(TEST_DEPS)
	+@MAKE="$(MAKE)" BUILD="$(BUILD)" bash tests/run.sh tsan

fuzz: $(TEST_DEPS)
	+@MAKE="$(MAKE)" FUZZ_SECONDS=$(FUZZ_SECONDS) BUILD="$(BUILD)" bash tests/run.sh fuzz

SOAK_TOKENS ?= 1000000
soak: $(BUILD)/tests/run/test_soak
	@$< $(SOAK_TOKENS)

soak-serve: $(CLI)
	@FUSEBOX="$(abspath $(CLI))" SOAK_SECONDS=$(or $(SOAK_SECONDS),3600) SOAK_REST=0 python3 -B tests/serve/test_soak.py

tests: $(TEST_PROGRAMS) $(DIGEST) $(SCHEMA_MASKS) $(FAIL_ALLOC) $(CLI) $(LIB_EMULATED) $(if $(LIB_EMULATED),$(BUILD)/bench/gpu_ops)
fuzzers: $(FUZZ_TARGETS)

# ---- layout and static checks ---------------------------------------------------------------------------------------
# Versions of clang-format disagree about layout; 14 (Debian 12) decides. Another one is asked to lay out nothing.
FORMAT_VERSION := 14
CLANG_FORMAT   ?= $(firstword $(shell command -v clang-format-$(FORMAT_VERSION) clang-format))
C_FILES         = $(shell find src include tests examples bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' 2>/dev/null | sort)
has_format      = $(CLANG_FORMAT) --version | grep -q 'version $(FORMAT_VERSION)\.'

fmt: | $(TEST_DEPS)
	@$(has_format) || { echo "fusebox: clang-format: $$($(CLANG_FORMAT) --version) (needs version $(FORMAT_VERSION))" >&2; exit 2; }
	$(CLANG_FORMAT) -i $(C_FILES)

lint: | $(TEST_DEPS)
	@awk '/^```/ { code = !code } !code && !/^[|!]/ && length > 125 \
	    { print FILENAME ":" FNR ": " length " columns (at most 125)"; bad = 1 } END { exit bad }' \
	    README.md docs/*.md docs/*/*.md bench/README.md
	@if $(has_format); then $(CLANG_FORMAT) --dry-run -Werror $(C_FILES); \
	else echo "lint: layout not checked: needs clang-format $(FORMAT_VERSION), here is $$($(CLANG_FORMAT) --version)"; fi
	@cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
	    --suppressions-list=mk/cppcheck.txt -D_GNU_SOURCE -D__x86_64__ -D__GNUC__ -DFB_ISA=avx2 -DFB_ISA_avx2 -Iinclude -Isrc -Itests -j2 \
	    -itests/support/emulate src examples tests/support tests/fuzz
