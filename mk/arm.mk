##  make test-arm   the kernels for ARM, cross-compiled and run by qemu-user: what they compute, not how fast

# A library for the other architecture, and the kernels' tests, which check a part of their cases as under sanitizers.
# What takes longest comes first.
ARM_DEPS := $(BUILD)/.arm-deps-ok
ARM_BUILD := $(BUILD)/arm
ARM_TESTS := $(addprefix backend/cpu/test_,linear attention packed experts fused fused_cache fused_head activation elementwise embed isa norm quantize rope screen) \
             $(addprefix base/test_,pack quant)

# After the others, because apt-get has a lock.
$(ARM_DEPS): mk/deps.sh | $(DEPS) $(TEST_DEPS)
	@mkdir -p $(@D)
	@bash mk/deps.sh arm
	@touch $@

.PHONY: test-arm
test-arm: $(ARM_DEPS)
	+@PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig $(MAKE) --no-print-directory -s \
	    $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$$(nproc)) CC=aarch64-linux-gnu-gcc ARCH=aarch64 CUDA=0 OPT=-O2 \
	    CFLAGS="-DFBT_SANITIZED=1 -DFBT_EMULATED=1" BUILD=$(ARM_BUILD) $(ARM_BUILD)/fusebox $(ARM_TESTS:%=$(ARM_BUILD)/tests/%)
	@BUILD=$(ARM_BUILD) bash tests/arm/run.sh $(ARM_TESTS)
