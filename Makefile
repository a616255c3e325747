# Thin: everything is done by cargo, xtask and gupfs. See README.md.
MNT     ?= /mnt/gupfs
STATE   ?= /var/lib/gupfs
SIZE    ?= 8G
BACKING ?= file
LAB     ?= /var/tmp/gupfs-demo
GUPFS   := $(or $(CARGO_TARGET_DIR),target)/release/gupfs

# A mount point that the user named must exist; the default one is made.
MKDIR := $(if $(filter file,$(origin MNT)),--mkdir)

.PHONY: help build tools up down demo test bench benchmarks test-benchmarks cost-benchmarks report test-report
help:
	@echo "make up    [MNT=/mnt/gupfs] [STATE=dir] [SIZE=8G] [BACKING=file|loop|ram]   make (or find) a file system and mount it"
	@echo "make down  [STATE=dir]                                                      unmount and stop"
	@echo "make demo  [DIR=tree] [LAB=dir] [SIZE=8G] [BACKING=file|loop|ram]           the main job on two nodes, verified"
	@echo "make test                                                                   all checks and tests"
	@echo "make bench [ARGS=--quick]                                                   the ratios of docs/performance.md"
	@echo "make benchmarks [MPI=mpich|openmpi]                                         the MPI programs of docs/benchmarks.md"
	@echo "make test-benchmarks                                                        their tests, also on a GUPFS mount"
	@echo "make cost-benchmarks [ARGS='--runs 15']                                      what they cost against fio and plain loops"
	@echo "make report [ARGS='--scale quick --backing ram']                            the documents' tables and figures, measured here"
	@echo "make test-report                                                            tests of its pages"

tools:
	@.ci/tools

build: tools
	cargo build --release --package gupfs --bin gupfs

up: build
	$(GUPFS) up --mount "$(MNT)" --state "$(STATE)" --size "$(SIZE)" --backing "$(BACKING)" $(MKDIR)

down:
	@test -x $(GUPFS) || { echo "$(GUPFS) is missing: run 'make build' first"; exit 1; }
	$(GUPFS) down --state "$(STATE)"

demo: build
	$(GUPFS) demo --dir "$(LAB)" --size "$(SIZE)" --backing "$(BACKING)" $(if $(DIR),--tree "$(DIR)") $(ARGS)

test: tools
	cargo xtask ci

bench: tools
	cargo xtask bench $(ARGS)

# `make` of a directory of this name: always, it knows what is new.
benchmarks:
	@$(MAKE) --no-print-directory -C benchmarks

# GUPFS=path: of a gupfs that is there already.
test-benchmarks: $(if $(filter file,$(origin GUPFS)),build)
	@$(MAKE) --no-print-directory -C benchmarks test-everywhere GUPFS="$(abspath $(GUPFS))"

cost-benchmarks:
	@$(MAKE) --no-print-directory -C benchmarks cost ARGS="$(ARGS)"

report: $(if $(filter file,$(origin GUPFS)),build)
	@$(MAKE) --no-print-directory -C benchmarks report GUPFS="$(abspath $(GUPFS))" ARGS="$(ARGS)"

test-report:
	@$(MAKE) --no-print-directory -C benchmarks test-report
