# Watari: make help lists the targets.
SHELL := /bin/bash
GO ?= build/bin/go
GOTESTSUM = $(GO) tool gotestsum
BIN := build/bin
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
PM = $(MAKE) --no-print-directory -C pm BUILD=$(CURDIR)/build/pm VENVS=$(CURDIR)/build/venv
GO_LDFLAGS := -ldflags "-X watari/internal/version.Version=$(VERSION)"

.PHONY: chaos sim help setup build programs provider generate deb tarball demo test test-unit test-pm test-guests test-system test-full lint docs clean
help: ## list the targets
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# Each target installs the Debian packages that it needs; the lists are in scripts/packages.
setup: ## install missing Debian packages and Go, as needed for building
	@scripts/setup.sh build

build: setup ## build watari, watari-agent and the programs for guests into build/bin
	@scripts/quietly build "building Watari" $(MAKE) --no-print-directory programs
	@scripts/quietly build-pm "building PM's provider" $(MAKE) --no-print-directory provider

# These two build without installing anything. AGENT_FLAGS makes the Debian package's agent position-independent.
programs:
	CGO_ENABLED=0 $(GO) build $(GO_LDFLAGS) -o $(BIN)/watari ./cmd/watari
	CGO_ENABLED=1 $(GO) build $(AGENT_FLAGS) $(GO_LDFLAGS) -o $(BIN)/watari-agent ./cmd/watari-agent
	CGO_ENABLED=0 $(GO) build $(GO_LDFLAGS) -ldflags "-s -w" -o $(BIN)/watari-guest ./cmd/watari-guest
	scripts/guest-rsh.sh $(BIN)/watari-guest-rsh
provider:
	$(PM) -j$$(nproc) $(CURDIR)/build/pm/libpm-fi.so
	strip --strip-unneeded -o $(BIN)/libpm-fi.so build/pm/libpm-fi.so

demo: build ## demonstrate the main use: LAMMPS on two sites, with a guest that moves meanwhile (root)
	@scripts/setup.sh build demo
	@scripts/demo.sh

deb: ## build Debian packages into build/deb, and check them with lintian
	@scripts/setup.sh build deb
	@scripts/quietly deb "building Debian packages" scripts/deb.sh
	@ls build/deb/*.deb

tarball: build ## pack the programs for other distributions into build/watari-VERSION-linux-amd64.tar.xz
	@scripts/quietly tarball "packing a tarball" scripts/tarball.sh
	@tail -n 1 build/log/tarball.log

test: lint test-unit test-pm test-guests test-system ## all tests except the long ones; installs what they need (root)

# These tests wait for half of their time, so two processes share them, each with a lab of its own: four tests for one, four
# for the other, and so on, which takes both about as long. Those that measure the speeds of hosts run alone after that.
ALONE := TestAbstractProcessors
test-system: build ## tests of the whole system, in labs with real guests (root)
	@scripts/setup.sh build demo test
	@echo "== tests of the whole, in two labs with real guests at a time"
	@rm -f build/log/test-half-*.log
	@$(MAKE) --no-print-directory -j2 test-half-1 test-half-2 || { scripts/failures build/log/test-half-*.log 2>/dev/null; exit 1; }
	@$(if $(WATARI_TEST_FULL),$(GOTESTSUM) --format standard-verbose -- -count=1 -timeout 20m -run '^($(ALONE))$$' ./test/)
test-half-%:
	@set -o pipefail; tests=$$($(GO) test -list . ./test | grep -vxE '$(if $(WATARI_TEST_FULL),$(ALONE))' | awk '/^Test/ && int(NR / 4) % 2 == $* - 1' | paste -sd'|') && \
		WATARI_TEST_HALF=$* $(GOTESTSUM) --format standard-verbose -- -count=1 -timeout 80m -run "^($$tests)\$$" ./test/ | \
		tee build/log/test-half-$*.log | sed -u 's/^/$*: /'

# Most packages' tests wait more than they compute, so more of them run at a time than there are cores. Those that take minutes begin
# first. lint vets all code, so the tests need not.
SLOW_PACKAGES := ./agent/vm ./sim ./manager ./agent
test-unit: build
	@scripts/setup.sh build demo generate test
	@echo "== unit tests"
	@$(GOTESTSUM) --format pkgname --format-hide-empty-pkg -- -p 4 -vet=off -timeout 30m $(SLOW_PACKAGES) $$($(GO) list ./... | grep -v '^watari/test\(/packages\)\?$$')

# The tests of the rails are run with sanitizers; the long tests run them without these, too.
test-pm: ## PM's tests: library, provider, models, fuzzing, sanitizers, MPI programs (root for Debian packages only)
	@scripts/setup.sh build pm/packages
	@echo "== PM: library and provider"
	@$(PM) -j3 $(if $(WATARI_TEST_FULL),test,test-library test-provider test-others)
	@echo "== PM: models, all interleavings, and fuzzing beside them"
	@$(PM) -j$$(nproc) FUZZ_SECONDS=$(if $(WATARI_TEST_FULL),60,3) model fuzz
	@echo "== PM: with sanitizers"
	@$(PM) -j3 asan
	@$(if $(WATARI_TEST_FULL),$(PM) -j3 tsan)
	@echo "== PM: MPI programs over it"
	@$(PM) test-mpi

test-guests: build ## PM between two real guests, with shared memory and verbs devices (root)
	@scripts/setup.sh build demo pm/packages
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/guests ./test/guests
	@echo "== PM: between real guests"
	@$(PM) GUESTS=$(CURDIR)/$(BIN)/guests test-guests

# The unit tests run the first 200 seeds, too. A mutant is a fault that is put into the product; the simulator has to find it.
SEEDS ?= 1000
sim: setup ## run the simulator over SEEDS seeds, and look whether it finds each mutant; the report is build/reports/sim.json
	@$(GO) run ./sim/explore -seeds $(SEEDS) -report build/reports/sim.json
	@$(GO) run ./sim/mutants -seeds 20000 -report build/reports/sim.json

test-full-sim: ## the simulator over 20,000 seeds, and all mutants
	@$(MAKE) --no-print-directory sim SEEDS=20000

# The parts of test-full. Each takes less than an hour.
SEED ?= 1
MINUTES ?= 10
chaos: build ## faults at random for MINUTES under programs that check themselves, on three sites; SEED decides them (root)
	@scripts/setup.sh build demo test
	@WATARI_CHAOS_SEED=$(SEED) WATARI_CHAOS_MINUTES=$(MINUTES) $(GOTESTSUM) --format standard-verbose -- -count=1 -timeout 10h -run '^TestChaos$$' ./test/

FULL := test-full-units test-full-lab test-full-sim test-full-machines test-full-bookworm test-full-trixie test-whole test-mixed
.PHONY: $(FULL)
test-full: ## all tests, including all faults, the packages and whole hosts: several hours; parts are test-full-* (root)
	@for part in $(FULL); do echo "== $$part" && $(MAKE) --no-print-directory $$part || exit; done

test-full-units test-full-lab test-full-bookworm test-full-trixie: export WATARI_TEST_FULL := 1
test-full-units: lint test-unit test-pm test-guests ## unit tests and PM's tests, including the long ones (root)

test-full-lab: test-system ## tests of the whole system, with all faults (root)

test-full-machines: build ## tests of the lab's whole hosts, of Debian 12 and 13 (root; minutes for the first of each)
	@scripts/setup.sh build demo test whole
	@echo "== tests of whole hosts"
	@WATARI_TEST_HOSTS=whole $(GOTESTSUM) --format standard-verbose -- -count=1 -timeout 60m -run '^TestWholeHost' ./lab/

test-full-bookworm test-full-trixie: test-full-%: build deb ## tests of the packages, in small systems and on two whole hosts of a Debian release (root)
	@scripts/setup.sh build demo deb whole
	@echo "== tests of the packages on $*"
	@$(GOTESTSUM) --format standard-verbose -- -count=1 -timeout 60m -run '/^$*$$' ./test/packages

test-whole: build ## the main use under KVM, on whole hosts (root; minutes for the first such lab)
test-mixed: build ## moves under KVM between a whole host of Debian 12 and one of Debian 13 (root; minutes for the first such lab)
test-whole test-mixed: test-%: build
	@scripts/setup.sh build demo test whole
	@echo "== tests on whole hosts ($*), with guests under KVM"
	@WATARI_TEST_HOSTS=$* $(GOTESTSUM) --format standard-verbose -- -count=1 -timeout 90m -run '^TestWhole' ./test/

lint: ## formatting, vet, shell scripts
	@scripts/setup.sh build lint
	@echo "== lint"
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w on these"; exit 1; }
	@$(GO) vet ./...
	@shellcheck scripts/*.sh examples/fence-ipmi scripts/quietly scripts/deb-version debian/licences
	@$(PM) lint

generate: ## regenerate the Go code of api/ from its protobuf files
	@scripts/setup.sh build generate
	@$(GO) build -o $(BIN)/ google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
	@PATH=$(CURDIR)/$(BIN):$$PATH protoc -I api --go_out=. --go_opt=module=watari --connect-go_out=. --connect-go_opt=module=watari api/watari/v1/*.proto

docs: setup ## generate the man pages from the commands' help
	@$(GO) run ./internal/manual/generate man

-include bench/*.mk

clean: ## remove all built files
	rm -rf build pm/build
