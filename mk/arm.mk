##  make test-arm   the kernels for ARM, cross-compiled and run by qemu-user: what they compute, not how fast

# What takes longest comes first.
ARM_DEPS  := $(BUILD)/.arm-deps-ok
ARM_BUILD := $(BUILD)/arm
ARM_TESTS := $(addprefix backend/cpu/test_,linear attention packed experts fused fused_cache fused_head activation elementwise embed isa norm quantize rope screen) \
             $(addprefix base/test_,pack quant)

# After the others, because apt-get has a lock.
$(ARM_DEPS): mk/deps.sh | $(DEPS) $(TEST_DEPS)
	@mkdir -p $(@D)
	@bash mk/deps.sh arm
	@touch $@

# What tests/arm/run.sh runs of whole models.
$(BUILD)/tests/arm/models: $(BUILD)/obj/tests/arm/models.o $(LIB_STATIC)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $^ -o $@ $(LIBS_ALL)

# A library for the other architecture. NEON's kernels have all variants (simd.h), but -O2: with -O3 they took twice as
# long to compile. The portable ones have few variants, which is a fifth of the work: the tests of this machine run them
# with all. The tests' programs leave out cases, as under sanitizers; where, they say (FBT_EMULATED).
ARM_MAKE = PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig $(MAKE) --no-print-directory -s \
    $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$$(nproc)) CC=aarch64-linux-gnu-gcc ARCH=aarch64 CUDA=0 \
    OPT=-O2 KERNEL_OPT=-O2 ISAFLAGS_portable=-DFB_FEW_VARIANTS CFLAGS="-DFBT_SANITIZED=1 -DFBT_EMULATED=1" \
    BUILD=$(ARM_BUILD) DEPS=$(DEPS) TEST_DEPS=$(TEST_DEPS)

.PHONY: test-arm tests-arm
tests-arm: $(ARM_DEPS)
	+@$(ARM_MAKE) $(ARM_BUILD)/tests/arm/models $(ARM_TESTS:%=$(ARM_BUILD)/tests/%)

test-arm: tests-arm
	@BUILD=$(ARM_BUILD) bash tests/arm/run.sh $(ARM_TESTS)
