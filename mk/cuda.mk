##  make CUDA=0 …   without the CUDA backend; CUDA_ARCH="90a" builds it for fewer GPUs than "80 90a 120"

# ---- libfusebox_cuda.so: where nvcc is; the CLI and the library open it at run time -----------------------------------
CUDA      ?= auto
CUDA_ARCH ?= 80 90a 120
NVCC      ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
ifeq ($(CUDA),0)
override NVCC :=
endif
ifneq ($(INSTRUMENTED),)
override NVCC :=
endif

CUDA_SRC      := $(sort $(wildcard src/backend/cuda/*.cu))
CUDA_HOST_SRC := $(sort $(wildcard src/backend/cuda/host/*.c))
CUDA_HOST_OBJ := $(CUDA_HOST_SRC:src/%.c=$(BUILD)/obj/%.o)
CUDA_OBJ      := $(CUDA_SRC:src/%.cu=$(BUILD)/obj/%.cu.o)
LIB_CUDA      := $(if $(NVCC),$(BUILD)/libfusebox_cuda.so)

# Machine code for the architectures asked for; a driver makes that of any other from the oldest one's PTX.
number     = $(patsubst %a,%,$(1))
CUDA_CODE  = $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a)) \
             -gencode arch=compute_$(call number,$(firstword $(CUDA_ARCH))),code=compute_$(call number,$(firstword $(CUDA_ARCH)))
# No contraction of a * b + c: a fused kernel and the plain ones must round alike.
NVCCFLAGS  = -std=c++17 -O3 -fmad=false -Iinclude -Isrc $(CUDA_CODE) -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-format-truncation \
             -Werror all-warnings -MMD -MP

$(BUILD)/obj/%.cu.o: src/%.cu | $(DEPS)
	@mkdir -p $(@D)
	$(call say,NVC,$<)
	$(Q)$(NVCC) $(NVCCFLAGS) -c $< -o $@

$(BUILD)/libfusebox_cuda.so: $(CUDA_OBJ) $(CUDA_HOST_OBJ) $(LIB_STATIC)
	$(call say,LD,$@)
	$(Q)$(NVCC) -shared -cudart static -Xlinker --exclude-libs,ALL -Xlinker -soname,$(@F) $^ -o $@ -ldl -lm

# ---- the same, to see that they compile, where no GPU would run them: for one architecture, hardly optimised -----------
CUDA_COMPILED := $(CUDA_SRC:src/%.cu=$(BUILD)/obj/compiled/%.cu.o)
LIB_COMPILED  := $(if $(NVCC),$(BUILD)/tests/libfusebox_cuda_compiled.so)
.PHONY: cuda-compiles
cuda-compiles: $(LIB_COMPILED)

$(BUILD)/obj/compiled/%.cu.o: CUDA_ARCH := 90
$(BUILD)/obj/compiled/%.cu.o: src/%.cu | $(DEPS)
	@mkdir -p $(@D)
	$(call say,NVC,$<)
	$(Q)$(NVCC) $(NVCCFLAGS) -Xcicc -O1 -Xptxas -O0 -c $< -o $@

$(BUILD)/tests/libfusebox_cuda_compiled.so: $(CUDA_COMPILED) $(CUDA_HOST_OBJ) $(LIB_STATIC)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(NVCC) -shared -cudart static -Xlinker --exclude-libs,ALL -Xlinker -z,defs $^ -o $@ -ldl -lm -lpthread -lrt $(PKGLIBS)

# ---- the same kernels, compiled for the host, for the tests -----------------------------------------------------------
# An address that is not a multiple of what is read or written there is a trap, as on a device.
EMULATED_SRC := $(filter-out src/backend/cuda/device.cu,$(CUDA_SRC)) $(sort $(wildcard tests/support/emulate/*.cpp))
EMULATED_OBJ := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(EMULATED_SRC))
# Not under the sanitizers, which do not follow its changes of stack.
LIB_EMULATED := $(if $(INSTRUMENTED),,$(if $(filter x86_64,$(ARCH)),$(BUILD)/tests/libfusebox_cuda_emulated.so))

# Kernels: no more than -O1 (emulate.h). A third of their time goes into the scheduler.
EMULATED_OPT := -O1
$(BUILD)/obj/emulated/tests/support/emulate/%.o: EMULATED_OPT := -O2

$(BUILD)/obj/emulated/%.o: % | $(DEPS)
	@mkdir -p $(@D)
	$(call say,CXX,$< (emulated))
	$(Q)$(CXX) -std=c++17 -D_GNU_SOURCE $(EMULATED_OPT) -g -ffp-contract=off -Wall -Wextra -Wno-unknown-pragmas -Wno-format-truncation -Wno-uninitialized -Wno-maybe-uninitialized -Werror -fPIC -fvisibility=hidden \
	    -fsanitize=alignment -fsanitize-undefined-trap-on-error -DFB_EMULATED -Iinclude -Isrc -Itests -include tests/support/emulate/emulate.h -MMD -MP -x c++ -c $< -o $@

$(BUILD)/tests/libfusebox_cuda_emulated.so: $(EMULATED_OBJ) $(CUDA_HOST_OBJ) $(LIB_STATIC)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CXX) -shared -Wl,-z,defs,--exclude-libs,ALL $(LDFLAGS_ALL) $^ -o $@ -lm

# ---- times of single ops, with whichever of the two libraries it is given ----------------------------------------------
GPU_OPS_OBJ := $(patsubst bench/%.c,$(BUILD)/obj/bench/%.o,$(wildcard bench/gpu_ops/*.c))

$(GPU_OPS_OBJ): $(BUILD)/obj/bench/%.o: bench/%.c
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -c $< -o $@

$(BUILD)/bench/gpu_ops: $(GPU_OPS_OBJ) $(LIB_STATIC)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $^ -o $@ $(LIBS_ALL) -ldl

-include $(CUDA_OBJ:.o=.d) $(CUDA_COMPILED:.o=.d) $(CUDA_HOST_OBJ:.o=.d) $(EMULATED_OBJ:.o=.d) $(GPU_OPS_OBJ:.o=.d)
