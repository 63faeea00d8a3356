##  make test-arm   the kernels for ARM, cross-compiled and run by qemu-user: what they compute, not how fast

# A library for the other architecture, and the kernels' tests, which check a part of their cases as under sanitizers.
ARM_DEPS := $(BUILD)/.arm-deps-ok
ARM_BUILD := $(BUILD)/arm
ARM_TESTS := activation attention elementwise embed fused fused_cache fused_head isa linear norm quantize rope screen

$(ARM_DEPS): mk/deps.sh
	@mkdir -p $(@D)
	@bash mk/deps.sh arm
	@touch $@

.PHONY: test-arm
test-arm: $(ARM_DEPS) $(DEPS) $(TEST_DEPS)
	+@PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig $(MAKE) --no-print-directory -s \
	    $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$$(nproc)) CC=aarch64-linux-gnu-gcc ARCH=aarch64 CUDA=0 \
	    CFLAGS=-DFBT_SANITIZED=1 BUILD=$(ARM_BUILD) $(ARM_BUILD)/fusebox $(ARM_TESTS:%=$(ARM_BUILD)/tests/backend/cpu/test_%)
	@BUILD=$(ARM_BUILD) bash tests/arm/run.sh $(ARM_TESTS)
