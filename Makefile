# `make help` lists the targets.

GO ?= go
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
# All but fs, which is a mount, and the tests of mounts.
PORTABLE = ./cmd/... ./control ./session/... ./overlay/... ./checkpoint ./strategy/... ./internal/... ./test/wine
# The race detector's default makes each process that ends take a second: helpers of tests too, of which there are hundreds.
export GORACE ?= atexit_sleep_ms=10
BENCH ?=
SOAK ?= 1h

.DEFAULT_GOAL := help
.PHONY: help build test lint uring wine bench demo soak docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/hyperfs
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/hyperfs ./cmd/hyperfs

test: ## unit, integration, differential and crash tests under the race detector
	bash .ci/setup test
	$(GO) test -race -vet=off -timeout 25m ./test ./... # vet is lint's; the longest first: it runs beside the others
	cd integrations/genkit && $(GO) test -race -vet=off ./...

lint: ## gofmt, go vet (also for other systems, where a package is meant for them), staticcheck
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not formatted: $$out" >&2; exit 1; fi
	$(GO) vet ./...
	GOOS=darwin $(GO) vet $(PORTABLE)
	GOOS=windows $(GO) vet $(PORTABLE)
	$(GO) run $(STATICCHECK) ./...
	cd integrations/genkit && $(GO) vet ./... && $(GO) run $(STATICCHECK) ./...

uring: ## the main tests of mounts with FUSE over io_uring, where the kernel has that; root switches it on for the time
	bash .ci/setup test
	bash test/uring/run.sh

wine: ## build for Windows and run that under Wine: tests of packages, and the command line
	bash .ci/setup wine
	bash test/wine/run.sh

bench: build ## measure against the plain filesystem and what else is installed; BENCH='-quick -lower tmpfs' for flags
	bash .ci/setup bench
	$(GO) run ./test/bench -hyperfs bin/hyperfs $(BENCH)

demo: build ## mount a real TypeScript project, damage it with real tools, roll it back
	bash .ci/setup demo
	bash test/demo/demo.sh bin/hyperfs

soak: ## the differential and crash tests for SOAK=1h each
	bash .ci/setup test
	HYPERFS_SOAK=$(SOAK) $(GO) test -race -timeout 0 -count 1 -v -run 'Differential|Crash' ./test/...

docs: build ## write docs/cli.md from the commands
	bin/hyperfs docs >docs/cli.md

clean: ## remove what the other targets made
	rm -rf bin bench
