# Watari: make help lists the targets.
SHELL := /bin/bash
GO ?= build/bin/go
BIN := build/bin
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -ldflags "-X watari/internal/version.Version=$(VERSION)"

.PHONY: help setup build generate lint test clean
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: ## install Debian packages and Go, where missing
	@scripts/setup.sh

build: setup ## build watari, watari-agent and watari-guest into build/bin
	@echo "== building"
	@CGO_ENABLED=0 $(GO) build $(LDFLAGS) -o $(BIN)/watari ./cmd/watari
	@CGO_ENABLED=1 $(GO) build $(LDFLAGS) -o $(BIN)/watari-agent ./cmd/watari-agent
	@CGO_ENABLED=0 $(GO) build $(LDFLAGS) -ldflags "-s -w" -o $(BIN)/watari-guest ./cmd/watari-guest

generate: setup ## regenerate the Go code of api/ from its protobuf files
	@$(GO) build -o $(BIN)/ google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
	@PATH=$(CURDIR)/$(BIN):$$PATH protoc -I api --go_out=. --go_opt=module=watari --connect-go_out=. --connect-go_opt=module=watari api/watari/v1/*.proto

-include bench/*.mk

clean: ## remove what was built
	rm -rf build
