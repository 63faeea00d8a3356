##  make            build/fusebox, build/libfusebox.a, build/libfusebox.so
##  make run        install what is missing, build, write a story
##  make serve      the same, then serve the built-in model at http://127.0.0.1:8080/
##  make test       install what is missing, build, run every test
##  make install    to PREFIX (default /usr/local), under DESTDIR
##  make fmt        lay out the sources; make lint checks layout and runs the static checkers
##  make SAN=1 …    the same under AddressSanitizer and UndefinedBehaviorSanitizer, in build/san
##  make TSAN=1 …   the same under ThreadSanitizer, in build/tsan

##  make V=1 …      shows every command

Q   := $(if $(V),,@)
say  = $(if $(V),,@printf '  %-3s %s\n' $(1) '$(2)')

VERSION   := $(shell sed -n 's/^\#define FB_VERSION "\(.*\)"/\1/p' include/fusebox.h)
SOVERSION := 0

# ---- what must be installed: a stamp, so that it is looked at once -------------------------------------------------
DEPS := $(BUILD)/.deps-ok

PKG       := libpcre2-8 libutf8proc
PKGCFLAGS  = $(shell pkg-config --cflags $(PKG))
PKGLIBS    = $(shell pkg-config --libs $(PKG))

WARN     := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wcast-qual -Wno-format-truncation -Wno-unknown-warning-option -Werror
OPT      := -O2 -g
comma    := ,
CHECKS   := $(if $(TSAN),thread,address$(comma)undefined)
INSTRUMENTED := $(SAN)$(TSAN)$(FUZZ)
SANFLAGS := $(if $(INSTRUMENTED),-fsanitize=$(if $(FUZZ),fuzzer-no-link$(comma))$(CHECKS) -fno-sanitize-recover=all \
                              -fno-omit-frame-pointer)
CFLAGS_ALL = -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) -fPIC -fvisibility=hidden -pthread -ffp-contract=off \
             -Iinclude -Isrc $(PKGCFLAGS) $(SANFLAGS) -MMD -MP $(CFLAGS)
LDFLAGS_ALL = -pthread $(SANFLAGS) $(ISA_ALIASES) $(LDFLAGS)
LIBS_ALL    = $(PKGLIBS) -lm
CLI_LIBS    = $(shell pkg-config --libs libedit)

# ---- sources -------------------------------------------------------------------------------------------------------
# src/backend/cpu/*.c are kernels, compiled once for each instruction set; everything else once.
KERNEL_SRC := $(sort $(wildcard src/backend/cpu/*.c))
CLI_SRC  := $(sort $(wildcard src/cli/*.c src/serve/*.c))
AMX_SRC    := $(sort $(wildcard src/backend/cpu/amx/*.c))
BF16_SRC   := $(sort $(wildcard src/backend/cpu/bf16/*.c))
DOT_SRC    := $(addprefix src/backend/cpu/,arm/table.c packed_32.c packed_256.c)
LIB_SRC  := $(filter-out $(KERNEL_SRC) $(AMX_SRC) $(BF16_SRC) $(DOT_SRC) $(CLI_SRC) $(wildcard src/backend/cuda/host/*.c),$(sort $(wildcard src/*/*.c src/*/*/*.c src/*/*/*/*.c)))

ARCH := $(shell uname -m)
ifeq ($(ARCH),x86_64)
# Under ThreadSanitizer the AVX-512 kernels, a third of its build, are those of AVX2: what threads share is the same.
# No instrumented build has those of AVX-VNNI, which differ from AVX2's by one instruction, nor those of AVX-512 without
# VNNI, if the processor has it.
CPU_FLAGS := $(if $(INSTRUMENTED),$(shell grep -m1 ^flags /proc/cpuinfo))
ONLY_VNNI := $(if $(TSAN),,$(filter avx512_vnni,$(CPU_FLAGS)))
ISAS := portable avx2 $(if $(INSTRUMENTED),,avxvnni) $(if $(TSAN),,$(if $(ONLY_VNNI),,avx512) avx512vnni)
ISA_ALIASES := $(if $(TSAN),$(foreach isa,amx avx512 avx512bf16 avx512vnni,$(foreach table,kernels screen prepare,-Wl$(comma)--defsym=fb_cpu_$(table)_$(isa)=fb_cpu_$(table)_avx2)))
ISA_WITHOUT := $(if $(INSTRUMENTED),-DFB_WITHOUT_AVXVNNI) $(if $(ONLY_VNNI),-DFB_WITHOUT_AVX512)
$(BUILD)/obj/backend/cpu/host/isa.o: CFLAGS_ALL += $(ISA_WITHOUT)
# The kernels of AVX-512 VNNI with a few of their own: for bfloat16, and besides for AMX. The emulated ones, in plain C, are for tests.
AMX_ISAS := $(if $(TSAN),,amx)
AMX_EMULATED := $(if $(TSAN),,amx_emulated)
BF16_ISAS := $(if $(TSAN),,avx512bf16)
else ifeq ($(ARCH),aarch64)
ISAS := portable neon
# The kernels of NEON, and packed weights by SDOT, or by SDOT and SMMLA: nothing else would differ.
DOT_ISAS := dotprod i8mm
else
ISAS := portable
endif
ISAFLAGS_portable :=
ISAFLAGS_avx2     := -mavx2 -mfma -mf16c
ISAFLAGS_dotprod  := -march=armv8.2-a+dotprod -DFB_ISA_neon
ISAFLAGS_i8mm     := -march=armv8.2-a+dotprod+i8mm -DFB_ISA_neon -DFB_ISA_dotprod
ISAFLAGS_avxvnni  := $(ISAFLAGS_avx2) -mavxvnni -DFB_ISA_avx2
ISAFLAGS_avx512   := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512
ISAFLAGS_avx512vnni := $(ISAFLAGS_avx512) -mavx512vnni -DFB_ISA_avx512
ISAFLAGS_avx512bf16 := $(ISAFLAGS_avx512vnni) -mavx512bf16
ISAFLAGS_amx_emulated := $(ISAFLAGS_avx512vnni) -DFB_ISA_avx512vnni -DFB_AMX_EMULATED
ISAFLAGS_amx      := $(ISAFLAGS_avx512vnni) -DFB_ISA_avx512vnni -mamx-tile -mamx-int8

LIB_OBJ := $(LIB_SRC:src/%.c=$(BUILD)/obj/%.o) \
           $(foreach isa,$(ISAS),$(KERNEL_SRC:src/backend/cpu/%.c=$(BUILD)/obj/backend/cpu/%.$(isa).o)) \
           $(foreach isa,$(AMX_ISAS),$(AMX_SRC:src/backend/cpu/%.c=$(BUILD)/obj/backend/cpu/%.$(isa).o)) \
           $(foreach isa,$(BF16_ISAS),$(BF16_SRC:src/backend/cpu/%.c=$(BUILD)/obj/backend/cpu/%.$(isa).o)) \
           $(foreach isa,$(DOT_ISAS),$(DOT_SRC:src/backend/cpu/%.c=$(BUILD)/obj/backend/cpu/%.$(isa).o))
CLI_OBJ := $(CLI_SRC:src/%.c=$(BUILD)/obj/%.o)

CLI        := $(BUILD)/fusebox
LIB_STATIC := $(BUILD)/libfusebox.a
LIB_SHARED := $(BUILD)/libfusebox.so
PKGCONFIG  := $(BUILD)/fusebox.pc
MAN        := $(BUILD)/fusebox.1

$(DEPS): mk/deps.sh
	@mkdir -p $(@D)
	@bash mk/deps.sh build
	@touch $@

$(BUILD)/obj/%.o: src/%.c | $(DEPS)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) -c $< -o $@

# The search for scales and the compensation are most of what quantising costs. Without a promise about floating-point exceptions, which nobody reads,
# its loops become vectors; values stay what they are.
$(addprefix $(BUILD)/obj/,base/quant_search.o base/quant_compensate.o model/compensate.o model/importance.o): CFLAGS_ALL += $(KERNEL_OPT) -fno-trapping-math
# The same for the pass over all logits.
$(BUILD)/obj/text/sampler.o: CFLAGS_ALL += $(KERNEL_OPT) -fno-trapping-math

# The commit, for benchmarks: in one object, made anew only when it is another one.
COMMIT := $(or $(shell git describe --always --dirty --abbrev=12 2>/dev/null),unknown)
.PHONY: look
$(BUILD)/.commit: look
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@
$(BUILD)/obj/base/version.o: CFLAGS_ALL += -DFB_COMMIT='"$(COMMIT)"'
$(BUILD)/obj/base/version.o: $(BUILD)/.commit

# Under the sanitizers a kernel's variants (simd.h), which are the same lines with other constants, are one function:
# all of them took three times as long to compile. Half of the rest went into checks that no address wraps around; what
# is read or written at such an address, AddressSanitizer sees. With -O1 the tests of models took twice as long.
KERNEL_OPT := $(if $(INSTRUMENTED),-DFB_FEW_VARIANTS $(if $(TSAN),-O1,-O2 -fno-sanitize=pointer-overflow),-O3)

# What this machine cannot run is compiled, and not instrumented: nothing would execute the checks.
ISA_NEEDS_avx2       := avx2
ISA_NEEDS_avxvnni    := avx_vnni
ISA_NEEDS_avx512     := avx512dq
ISA_NEEDS_avx512vnni := avx512_vnni
ISA_NEEDS_avx512bf16 := avx512_bf16
ISA_NEEDS_amx        := amx_int8
not_run = $(if $(INSTRUMENTED),$(if $(ISA_NEEDS_$(1)),$(if $(filter $(ISA_NEEDS_$(1)),$(CPU_FLAGS)),,-O1 -fno-sanitize=all)))

define kernel_rule
$(BUILD)/obj/backend/cpu/%.$(1).o: src/backend/cpu/%.c | $(DEPS)
	@mkdir -p $$(@D)
	$$(call say,CC,$$< ($(1)))
	$$(Q)$$(CC) $$(CFLAGS_ALL) $(KERNEL_OPT) $(call not_run,$(1)) $(ISAFLAGS_$(1)) -DFB_ISA=$(1) -DFB_ISA_$(1) -c $$< -o $$@
endef
$(foreach isa,$(ISAS) $(BF16_ISAS) $(AMX_ISAS) $(AMX_EMULATED) $(DOT_ISAS),$(eval $(call kernel_rule,$(isa))))

$(LIB_STATIC): $(LIB_OBJ)
	@rm -f $@
	$(call say,AR,$@)
	$(Q)ar rcs $@ $^

$(LIB_SHARED): $(LIB_OBJ)
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,libfusebox.so.$(SOVERSION) $(LDFLAGS_ALL) $^ -o $@ $(LIBS_ALL)

$(CLI): $(CLI_OBJ) $(LIB_STATIC)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $^ -o $@ $(LIBS_ALL) $(CLI_LIBS)

$(PKGCONFIG): mk/fusebox.pc.in include/fusebox.h
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

# The program knows its commands and options; nobody writes them down twice.
$(MAN): $(CLI)
	$(call say,MAN,$@)
	$(Q)$(CLI) man > $@

# The page is part of the program.
$(BUILD)/obj/serve/page.o: src/serve/page.html

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d)
