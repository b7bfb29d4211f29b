# bench.mk: targets of the benchmarks; each writes build/reports/<name>.json.
.PHONY: bench-overlay
bench-overlay: build ## network: Watari's routes and WireGuard against bare links, bare WireGuard and OpenVPN (root)
	@$(GO) run ./bench/overlay
