##  make test-python  build the Python package, install it in a virtual environment in build/, run its tests

# ---- the files of the package: lib/, bin/, include/, share/ ------------------------------------------------------------
# python/setup.py copies this folder into the wheel. The library and the program contain PCRE2 and utf8proc, the program
# also libedit and what that needs, where there are static ones (Debian's packages have them), so that the wheel needs the
# C library only.
PYTHON_FILES := $(BUILD)/python/files
PYTHON_STATIC = $(wildcard $(foreach name,pcre2-8 utf8proc,$(shell $(CC) -print-file-name=lib$(name).a)))
PYTHON_LIBS   = $(if $(word 2,$(PYTHON_STATIC)),$(PYTHON_STATIC),$(PKGLIBS)) -lm
PYTHON_EDIT   = $(wildcard $(foreach name,edit bsd tinfo md,$(shell $(CC) -print-file-name=lib$(name).a)))

PYTHON_COPIES := $(patsubst include/%,$(PYTHON_FILES)/include/%,$(wildcard include/*.h)) \
                 $(patsubst models/%,$(PYTHON_FILES)/share/fusebox/models/%,$(wildcard models/storyteller/*)) \
                 $(if $(LIB_CUDA),$(PYTHON_FILES)/lib/libfusebox_cuda.so)
PYTHON_ALL    := $(PYTHON_FILES)/lib/libfusebox.so $(PYTHON_FILES)/bin/fusebox $(PYTHON_COPIES)

.PHONY: python-files python-needs test-python
python-files: $(PYTHON_ALL)
	$(if $(LIB_CUDA),,@rm -f $(PYTHON_FILES)/lib/libfusebox_cuda.so)

$(PYTHON_FILES)/lib/libfusebox.so: $(LIB_OBJ)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,libfusebox.so.$(SOVERSION),--exclude-libs,ALL,-s $(LDFLAGS_ALL) $^ -o $@ $(PYTHON_LIBS)

$(PYTHON_FILES)/bin/fusebox: $(CLI_OBJ) $(LIB_STATIC)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -Wl,-s $(LDFLAGS_ALL) $^ -o $@ $(PYTHON_LIBS) $(if $(word 4,$(PYTHON_EDIT)),$(PYTHON_EDIT),$(CLI_LIBS))

define python_copy
$(1): $(2)
	@mkdir -p $$(@D)
	$$(Q)cp $$< $$@
endef
$(eval $(call python_copy,$(PYTHON_FILES)/include/%,include/%))
$(eval $(call python_copy,$(PYTHON_FILES)/share/fusebox/models/%,models/%))
$(eval $(call python_copy,$(PYTHON_FILES)/lib/%_cuda.so,$(BUILD)/%_cuda.so))

# ---- a virtual environment with the package in it ------------------------------------------------------------------------
# PIP_ARGS goes to every pip install (--index-url …, --no-index --find-links …). If the system's Python has torch, that
# one is used, because a second one is gigabytes. Nothing is compiled while installing: of 10,000 files the tests import
# a third, and Python compiles those itself.
PYTHON        ?= python3
PIP_ARGS      ?=
PYTHON_VENV   := $(BUILD)/python-venv
PYTHON_BIN    := $(PYTHON_VENV)/bin
PYTHON_TORCH  := $(if $(wildcard python/src/fusebox/torch/*.py),python/tests/requirements-torch.txt)
PYTHON_NEEDS  := python/tests/requirements.txt $(PYTHON_TORCH)
PYTHON_SRC    := python/setup.py python/pyproject.toml $(shell find python/src -type f ! -name '*.pyc' 2>/dev/null)
PYTHON_DEPS   := $(BUILD)/.python-deps-ok
PIP            = $(PYTHON_BIN)/python -m pip --disable-pip-version-check -q
PYTHON_MAKE    = env CUDA="$(CUDA)" CUDA_ARCH="$(CUDA_ARCH)" BUILD="$(abspath $(BUILD))"

$(PYTHON_DEPS): mk/deps.sh
	@mkdir -p $(@D)
	@bash mk/deps.sh python
	@touch $@

$(PYTHON_VENV)/.venv-ok: $(PYTHON_DEPS)
	@echo '# python: making $(PYTHON_VENV)'
	$(Q)rm -rf $(PYTHON_VENV)
	$(Q)$(PYTHON) -m venv $$($(PYTHON) -c 'import torch' 2>/dev/null && echo --system-site-packages) $(PYTHON_VENV)
	@touch $@

$(PYTHON_VENV)/.needs-ok: $(PYTHON_VENV)/.venv-ok $(PYTHON_NEEDS)
	@echo '# python: installing $(PYTHON_NEEDS)'
	$(Q)$(PIP) install --no-compile $(PIP_ARGS) $(PYTHON_NEEDS:%=-r %)
	@touch $@

$(PYTHON_VENV)/.package-ok: $(PYTHON_VENV)/.needs-ok $(PYTHON_ALL) $(PYTHON_SRC)
	@echo '# python: building and installing the wheel'
	$(Q)rm -rf $(BUILD)/python/wheel
	$(Q)$(PYTHON_MAKE) $(PIP) wheel $(PIP_ARGS) --no-deps --no-build-isolation -w $(BUILD)/python/wheel ./python
	$(Q)$(PIP) install --force-reinstall --no-deps --no-index $(BUILD)/python/wheel/*.whl
	@touch $@

python-needs: $(PYTHON_VENV)/.needs-ok

# As in `make test`: the CUDA backend only where a GPU is, and for one architecture.
test-python: | $(DEPS)
	+@CUDA="$(if $(wildcard /dev/nvidiactl),$(CUDA),0)" CUDA_ARCH="$(if $(filter file,$(origin CUDA_ARCH)),90,$(CUDA_ARCH))" $(MAKE) --no-print-directory -s \
	    $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$$(nproc)) BUILD="$(BUILD)" $(PYTHON_VENV)/.package-ok
	@BUILD="$(BUILD)" bash python/tests/run.sh $(PYTHON_BIN)
