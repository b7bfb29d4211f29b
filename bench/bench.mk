# bench.mk: targets for the benchmarks. Each writes build/reports/<name>.json.
.PHONY: bench-overlay
bench-overlay: ## network: Watari's routes and WireGuard against bare links, bare WireGuard and OpenVPN (root)
	@scripts/setup.sh build bench-overlay
	@$(GO) build -o $(BIN)/wireguard-go golang.zx2c4.com/wireguard
	@$(GO) build -o $(BIN)/bench-overlay ./bench/overlay
	@$(BIN)/bench-overlay

.PHONY: bench-start
bench-start: build ## time to start guests: forked, booted, a stock Debian; the first cluster with sharing and without (root)
	@scripts/setup.sh build demo bench-start
	@$(GO) run ./bench/start

.PHONY: bench-migrate
bench-migrate: build ## live migration under an MPI ping-pong, against virsh migrate --live (root)
	@scripts/setup.sh build demo bench-migrate
	@$(GO) run ./bench/migrate

.PHONY: bench-kvm
bench-kvm: build ## starts and moves of guests under KVM, on two whole hosts (root; most of an hour)
	@scripts/setup.sh build demo whole bench-start bench-migrate
	@$(GO) run ./bench/start -whole -runs 1
	@$(GO) run ./bench/migrate -whole -runs 1

.PHONY: bench-idle
bench-idle: build ## CPU time and memory of manager and agent with sixteen idle guests (root)
	@scripts/setup.sh build demo
	@$(GO) run ./bench/idle

.PHONY: bench-pm
bench-pm: build ## PM, alone and under MPI, against other transports of three MPIs and libfabric, on one and two machines and between guests (root)
	@scripts/setup.sh build demo pm/packages bench-pm
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/guests ./test/guests
	@$(GO) run ./bench/pm

.PHONY: bench-scale
bench-scale: build ## a manager with up to 3,000 simulated hosts and 30,000 guests: placing, filling, draining, CPU, memory; and up to 64 real guests (root). SCALE="-only real" for these alone
	@scripts/setup.sh build demo
	@$(GO) run ./bench/scale $(SCALE)

.PHONY: bench-harvest
bench-harvest: build ## what the owner of a lent machine feels of guests (root)
	@scripts/setup.sh build demo
	@$(GO) build -o $(BIN)/bench-harvest ./bench/harvest && $(BIN)/bench-harvest $(HARVEST)

.PHONY: bench-balance
bench-balance: build ## three MPI jobs that begin on two of four hosts, with and without the policy that balances load (root)
	@scripts/setup.sh build demo
	@$(GO) build -o $(BIN)/bench-balance ./bench/balance && $(BIN)/bench-balance $(BALANCE)

.PHONY: bench-grid
bench-grid: setup ## the policies' decisions over 250 to 2,000 hosts with ten guests each
	@$(GO) run ./bench/grid

.PHONY: bench-checkpoint
bench-checkpoint: ## what a checkpoint of one guest costs, against virsh save (root)
	@scripts/setup.sh build demo bench-checkpoint
	@$(GO) build -o $(BIN)/bench-checkpoint ./bench/checkpoint && $(BIN)/bench-checkpoint $(CHECKPOINT)

.PHONY: bench-cut
bench-cut: build ## what a checkpoint of a cluster on two sites costs its MPI program, against virsh save; and a restore (root)
	@scripts/setup.sh build demo bench-migrate
	@$(GO) build -o $(BIN)/bench-cut ./bench/cut && $(BIN)/bench-cut $(CUT)

PAPER ?= grid
.PHONY: experiment
experiment: build ## the experiments of a paper again (PAPER=grid), with its figures beside; EXPERIMENT="-only network -runs 1"; NPB=FOLDER: the NAS benchmarks too (root; an hour)
	@scripts/setup.sh build demo experiments $(if $(NPB),npb)
	@$(GO) run ./experiments -paper $(PAPER) $(if $(NPB),-npb "$(NPB)") $(EXPERIMENT)
