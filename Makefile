# Fusebox. `make run` and `make test` are all a newcomer needs; `make help` lists the rest.
SHELL := /bin/bash
ifneq ($(FUZZ),)
CC := clang
endif
BUILD ?= build$(if $(SAN),/san)$(if $(TSAN),/tsan)$(if $(FUZZ),/fuzz)
PREFIX ?= /usr/local
DESTDIR ?=

.DEFAULT_GOAL := all
include mk/build.mk
include mk/cuda.mk
include mk/check.mk
include mk/python.mk
include mk/arm.mk

.PHONY: all run serve install help
all: $(CLI) $(LIB_STATIC) $(LIB_SHARED) $(LIB_CUDA) $(PKGCONFIG) $(MAN)

# A newcomer's first command: it builds with all cores unless somebody said otherwise.
BUILD_CLI = $(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$$(nproc)) $(CLI)

run:
	+@$(BUILD_CLI)
	@$(CLI) run -p "Once upon a time" -n 160 --seed 1

serve:
	+@$(BUILD_CLI)
	@$(CLI) serve

install: all
	install -d $(DESTDIR)$(PREFIX)/{bin,include,lib/pkgconfig,share/fusebox/models/storyteller,share/man/man1} \
	    $(DESTDIR)$(PREFIX)/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
	install -m 755 $(CLI) $(DESTDIR)$(PREFIX)/bin/fusebox
	install -m 644 $(MAN) $(DESTDIR)$(PREFIX)/share/man/man1/
	$(CLI) completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fusebox
	$(CLI) completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_fusebox
	$(CLI) completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/fusebox.fish
	install -m 644 include/*.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 $(LIB_STATIC) $(DESTDIR)$(PREFIX)/lib/
	install -m 755 $(LIB_SHARED) $(DESTDIR)$(PREFIX)/lib/libfusebox.so.$(SOVERSION)
	ln -sf libfusebox.so.$(SOVERSION) $(DESTDIR)$(PREFIX)/lib/libfusebox.so
	$(if $(LIB_CUDA),install -m 755 $(LIB_CUDA) $(DESTDIR)$(PREFIX)/lib/)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' mk/fusebox.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/fusebox.pc
	install -m 644 models/storyteller/* $(DESTDIR)$(PREFIX)/share/fusebox/models/storyteller/

help:
	@sed -n 's/^##//p' mk/*.mk
